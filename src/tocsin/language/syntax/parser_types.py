"""Parses the parts of statements: names, paths, options, and the types of CREATE TYPE."""

from __future__ import annotations

from typing import Any

from sqlglot.tokenizer_core import Token, TokenType

from tocsin.language.syntax import statements as st
from tocsin.language.syntax.dialect import QueryParser
from tocsin.rules.model.types import PRIMITIVES


class TypeParser(QueryParser):
    """Parses names, paths, options, parameters and types."""

    _within_open = True

    @property
    def here(self) -> Token | None:
        """The current token, or None at the end."""
        return self._curr if self._curr and self._curr.token_type != TokenType.SENTINEL else None

    # ------------------------------------------------------------ names and options

    def _word(self, *words: str) -> bool:
        return self._match_text_seq(*words)

    def _need(self, *words: str) -> None:
        if not self._match_text_seq(*words):
            self.refuse(f"Expected {' '.join(words)}")

    def _need_token(self, kind: TokenType, shown: str) -> None:
        if not self._match(kind):
            self.refuse(f"Expected {shown}")

    def _name(self, what: str) -> str:
        name = self._parse_id_var(any_token=False) if self.here and self._curr.token_type != TokenType.STRING else None
        if name is None:
            # Where only a name can stand, a reserved word of Spark is a name too.
            if self.here is not None and self._curr.text.replace("_", "a").isalnum() and not self._is_literal():
                self._advance()
                return self._prev.text
            self.refuse(f"Expected the name of {what}")
        return str(name.name)

    def _is_literal(self) -> bool:
        return self._curr.token_type in (TokenType.STRING, TokenType.NUMBER)

    def _qualified(self, what: str) -> st.Name:
        offset = self._curr.start
        name = self._name(what)
        if self._match(TokenType.DOT):
            return st.Name(self._name(what), name, offset)
        return st.Name(name, None, offset)

    def _if_not_exists(self) -> bool:
        return self._word("IF", "NOT", "EXISTS")

    def _if_exists(self) -> bool:
        return self._word("IF", "EXISTS")

    def _path(self) -> tuple[str, ...]:
        parts = [self._name("a field")]
        while self._match(TokenType.DOT):
            parts.append(self._name("a field"))
        return tuple(parts)

    def _paths(self) -> tuple[tuple[str, ...], ...]:
        return tuple(self._parse_csv(self._path))

    def _options(self) -> dict[str, Any]:
        """Parses WITH {…}: an object of constants, as expressions that the executor evaluates."""
        if not self._match(TokenType.WITH):
            return {}
        if self._curr.token_type != TokenType.L_BRACE:
            self.refuse("Expected { after WITH")
        options: dict[str, Any] = {}
        for option in self._parse_object().expressions:
            if option.this.name in options:
                self.refuse(f"Expected each option once, {option.this.name} is given twice")
            options[option.this.name] = option.expression
        return options

    def _parameters(self) -> tuple[str, ...]:
        """Parses `(a, b)`: names that must differ."""
        self._need_token(TokenType.L_PAREN, "(parameters)")
        seen: set[str] = set()
        names = [] if self._curr.token_type == TokenType.R_PAREN else self._parse_csv(lambda: self._new_parameter(seen))
        self._need_token(TokenType.R_PAREN, ", or ) after a parameter")
        return tuple(names)

    def _new_parameter(self, seen: set[str]) -> str:
        token = self._curr
        name = self._name("a parameter")
        if name in seen:
            self.refuse(f"Expected parameters with different names, {name} is there twice", token=token)
        seen.add(name)
        return name

    def _arity(self) -> int | None:
        """Parses `@2`, or `(a, b)` in the newer notation."""
        if self._match(TokenType.PARAMETER):
            self._need_token(TokenType.NUMBER, "the number of parameters after @")
            return int(self._prev.text)
        if self._match(TokenType.L_PAREN):
            names = (
                [] if self._curr.token_type == TokenType.R_PAREN else self._parse_csv(lambda: self._name("a parameter"))
            )
            self._need_token(TokenType.R_PAREN, ")")
            return len(names)
        return None

    # ------------------------------------------------------------ types

    def _type(self) -> st.TypeText:
        if self._word("OPEN"):
            return self._object(is_open=True)
        if self._word("CLOSED"):
            return self._object(is_open=False)
        if self._match(TokenType.L_BRACKET):
            item, optional = self._item()
            self._need_token(TokenType.R_BRACKET, "]")
            return st.CollectionText(item, optional, multiset=False)
        if self._curr.token_type == TokenType.L_BRACE:
            if self._next.token_type == TokenType.L_BRACE:
                self._advance(2)
                item, optional = self._item()
                self._need_token(TokenType.R_BRACE, "}}")
                self._need_token(TokenType.R_BRACE, "}}")
                return st.CollectionText(item, optional, multiset=True)
            return self._object(is_open=self._within_open)
        name = self._qualified("a type")
        if name.dataverse is None and name.name.lower() in PRIMITIVES:
            return PRIMITIVES[name.name.lower()]
        return name

    def _item(self) -> tuple[st.TypeText, bool]:
        item = self._type()
        return item, self._match(TokenType.PLACEHOLDER)

    def _object(self, is_open: bool) -> st.ObjectText:
        self._need_token(TokenType.L_BRACE, "{")
        # A nested object without OPEN or CLOSED is like the object around it.
        outer, self._within_open = self._within_open, is_open
        fields = [] if self._curr.token_type == TokenType.R_BRACE else self._parse_csv(self._field)
        self._within_open = outer
        self._need_token(TokenType.R_BRACE, ", or } after a field")
        return st.ObjectText(tuple(fields), is_open)

    def _field(self) -> st.FieldText:
        offset = self._curr.start
        if self._curr.token_type == TokenType.STRING:
            self._advance()
            name = self._prev.text
        else:
            name = self._name("a field")
        self._need_token(TokenType.COLON, ": and a type after the field's name")
        kind, optional = self._item()
        return st.FieldText(name, kind, optional, offset)
