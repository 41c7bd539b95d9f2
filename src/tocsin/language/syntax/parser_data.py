"""Parses the statements that change data: INSERT, UPSERT, DELETE and LOAD."""

from __future__ import annotations

from sqlglot.tokenizer_core import TokenType

from tocsin.language.syntax import statements as st
from tocsin.language.syntax.parser_types import TypeParser

# The tokens that begin the records to insert. The word before such a token is a dataset name, even if it is DATASET.
_AFTER_NAME = (
    TokenType.L_BRACE, TokenType.L_BRACKET, TokenType.L_PAREN, TokenType.SELECT, TokenType.WITH, TokenType.DOT,
    TokenType.SENTINEL,
)  # fmt: skip

# The tokens that follow a dataset's name in DELETE if there is no variable; the last two end a procedure's body.
_AFTER_DATASET = (TokenType.WHERE, TokenType.R_BRACE, TokenType.SEMICOLON)


class DataParser(TypeParser):
    """Parses INSERT, UPSERT, DELETE and LOAD."""

    def _insert(self, upsert: bool = False) -> st.Statement:
        self._need("INTO")
        if self._next.token_type not in _AFTER_NAME:
            self._word("DATASET")
        dataset = self._qualified("a dataset")
        source = self._parse_statement()
        if source is None:
            self.refuse("Expected a query, an object or an array of objects")
        return st.Insert(dataset=dataset, source=source, upsert=upsert)

    def _delete(self) -> st.Statement:
        self._need("FROM")
        dataset = self._qualified("a dataset")
        alias = None
        if self._match(TokenType.ALIAS) or (self.here and self._curr.token_type not in _AFTER_DATASET):
            alias = self._name("a variable")
        where = self._parse_disjunction() if self._match(TokenType.WHERE) else None
        if self._prev.token_type == TokenType.WHERE:
            self.refuse("Expected a condition after WHERE")
        return st.Delete(dataset=dataset, alias=alias, where=where)

    def _load(self) -> st.Statement:
        self._need("DATASET")
        dataset = self._qualified("a dataset")
        self._need("USING")
        adapter = self._name("an adapter")
        self._need_token(TokenType.L_PAREN, '(("path"="…"), ("format"="json"))')
        pairs = self._parse_csv(self._load_option)
        options = dict(pairs)
        if len(options) < len(pairs):
            self.refuse("Expected each option once")
        self._need_token(TokenType.R_PAREN, ")")
        return st.Load(dataset=dataset, adapter=adapter, options=options)

    def _load_option(self) -> tuple[str, str]:
        self._need_token(TokenType.L_PAREN, '("name"="value")')
        self._need_token(TokenType.STRING, "an option's name in quotes")
        name = self._prev.text
        self._need_token(TokenType.EQ, "=")
        self._need_token(TokenType.STRING, "an option's value in quotes")
        value = self._prev.text
        self._need_token(TokenType.R_PAREN, ")")
        return name, value
