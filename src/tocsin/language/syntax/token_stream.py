"""Reads the parts of a statement from its tokens: words, names, options, types, and whole queries.

The parsers of statements are functions that take a `TokenStream`. sqlglot's parser owns the tokens, so that a query can
begin at any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from tocsin.language.syntax import statements as st
from tocsin.language.syntax.dialect import QueryParser, Tocsin
from tocsin.rules.model.types import PRIMITIVES

_T = TypeVar("_T")


class TokenStream:
    """The tokens of one statement. Methods that return a bool move on only if they return True."""

    def __init__(self, script: str, tokens: list[Token]) -> None:
        self.script = script
        self.first, self.last = tokens[0], tokens[-1]
        self._parser = QueryParser(dialect=Tocsin())
        self._parser.begin(script, tokens)

    # ------------------------------------------------------------ tokens

    @property
    def current(self) -> Token:
        """The current token; at the end its kind is SENTINEL."""
        return self._parser._curr

    @property
    def next_token(self) -> Token:
        return self._parser._next

    @property
    def previous(self) -> Token:
        return self._parser._prev

    @property
    def here(self) -> Token | None:
        """The current token, or None at the end."""
        return self.current if self.current and self.current.token_type != TokenType.SENTINEL else None

    @property
    def error_token(self) -> Token | None:
        """The token at which a syntax error is reported."""
        return self._parser.error_token or self.here

    def at(self, *kinds: TokenType) -> bool:
        """Whether the current token is of one of these kinds. It stays the current token."""
        return self.current.token_type in kinds

    def advance(self) -> Token:
        """Moves on, and returns the token that was passed."""
        self._parser._advance()
        return self.previous

    def accept(self, kind: TokenType) -> bool:
        return bool(self._parser._match(kind))

    def word(self, *words: str) -> bool:
        return bool(self._parser._match_text_seq(*words))

    def one_of(self, words: tuple[str, ...]) -> bool:
        return bool(self._parser._match_texts(words))

    def need(self, *words: str) -> None:
        if not self.word(*words):
            self.refuse(f"Expected {' '.join(words)}")

    def need_token(self, kind: TokenType, shown: str) -> Token:
        if not self.accept(kind):
            self.refuse(f"Expected {shown}")
        return self.previous

    def refuse(self, message: str, token: Token | None = None) -> NoReturn:
        """Raises a syntax error at a token, or at the current token if none is given."""
        self._parser.refuse(message, token)

    def need_end(self) -> None:
        if self.here is not None:
            self.refuse("Invalid expression / Unexpected token")
        self._parser.check_errors()

    # ------------------------------------------------------------ queries and lists

    def query(self, expected: str) -> exp.Expr:
        """Parses a query or an expression; `expected` says what is missing if there is neither."""
        query = self._parser._parse_statement()
        if query is None:
            self.refuse(f"Expected {expected}")
        # sqlglot takes a query in parentheses at the beginning of a statement for a whole expression.
        if isinstance(query, exp.Subquery) and self.current.token_type in self._parser.SET_OPERATIONS:
            query = self._parser._parse_set_operations(query)
            assert query is not None
        return query

    def expression(self, expected: str) -> exp.Expr:
        expression = self._parser._parse_disjunction()
        if expression is None:
            self.refuse(f"Expected {expected}")
        return expression

    def items(self, parse: Callable[[], _T], end: TokenType | None = None) -> list[_T]:
        """Parses one or more items with commas between them; with `end`, which follows them, there may be none."""
        return [] if end is not None and self.at(end) else self._parser._parse_csv(parse)

    def arguments(self) -> tuple[exp.Expr, ...]:
        self.need_token(TokenType.L_PAREN, "(arguments)")
        arguments = self.items(lambda: self.expression("an expression"), TokenType.R_PAREN)
        self.need_token(TokenType.R_PAREN, ", or ) after an argument")
        return tuple(arguments)

    def parse_braces(self, what: str, parse: Callable[[], object]) -> tuple[int, str]:
        """Parses text in braces with `parse`; returns the place where it begins, and the text."""
        self.need_token(TokenType.L_BRACE, f"{{ and {what}")
        start = self.current.start
        parse()
        end = self.previous.end + 1
        self.accept(TokenType.SEMICOLON)
        self.need_token(TokenType.R_BRACE, f"}} after {what}")
        return start, self.script[start:end]

    # ------------------------------------------------------------ names and options

    def name(self, what: str) -> str:
        name = self._parser._parse_id_var(any_token=False) if self.here and not self.at(TokenType.STRING) else None
        if name is None:
            # Where only a name can stand, a reserved word of Spark is a name too.
            is_word = self.here is not None and self.current.text.replace("_", "a").isalnum()
            if is_word and not self.at(TokenType.STRING, TokenType.NUMBER):
                return self.advance().text
            self.refuse(f"Expected the name of {what}")
        return str(name.name)

    def full_name(self, what: str) -> st.Name:
        offset = self.current.start
        name = self.name(what)
        if self.accept(TokenType.DOT):
            return st.Name(self.name(what), name, offset)
        return st.Name(name, None, offset)

    def if_not_exists(self) -> bool:
        return self.word("IF", "NOT", "EXISTS")

    def new_name(self, what: str) -> tuple[st.Name, bool]:
        """Parses a name with or without IF NOT EXISTS before or after it."""
        before = self.if_not_exists()
        name = self.full_name(what)
        return name, self.if_not_exists() or before

    def path(self) -> tuple[str, ...]:
        parts = [self.name("a field")]
        while self.accept(TokenType.DOT):
            parts.append(self.name("a field"))
        return tuple(parts)

    def text(self, what: str) -> str:
        if not self.at(TokenType.STRING):
            self.refuse(f"Expected {what}")
        return str(self._parser._parse_text().this)

    def options(self) -> dict[str, Any]:
        """Parses WITH {…}: an object of constants, as expressions that the executor evaluates."""
        if not self.accept(TokenType.WITH):
            return {}
        if not self.at(TokenType.L_BRACE):
            self.refuse("Expected { after WITH")
        options: dict[str, Any] = {}
        for option in self._parser._parse_object().expressions:
            if option.this.name in options:
                self.refuse(f"Expected each option once, {option.this.name} is given twice")
            options[option.this.name] = option.expression
        return options

    def configuration(self) -> dict[str, str]:
        """Parses `(("name"="value"), …)`: options as texts, each once."""

        def option() -> tuple[str, str]:
            self.need_token(TokenType.L_PAREN, '("name"="value")')
            name = self.need_token(TokenType.STRING, "an option's name in quotes").text
            self.need_token(TokenType.EQ, "=")
            value = self.need_token(TokenType.STRING, "an option's value in quotes").text
            self.need_token(TokenType.R_PAREN, ")")
            return name, value

        self.need_token(TokenType.L_PAREN, '(("path"="…"), ("format"="json"))')
        pairs = self.items(option)
        if len(dict(pairs)) < len(pairs):
            self.refuse("Expected each option once")
        self.need_token(TokenType.R_PAREN, ")")
        return dict(pairs)

    def parameters(self, *, typed: bool = False) -> tuple[st.ChannelParameter, ...]:
        """Parses `(a, b)`, or `(a: type, b)` with `typed`: names that must differ."""
        seen: set[str] = set()

        def parameter() -> st.ChannelParameter:
            token = self.current
            name = self.name("a parameter")
            if name in seen:
                self.refuse(f"Expected parameters with different names, {name} is there twice", token=token)
            seen.add(name)
            return st.ChannelParameter(
                name, self.type() if typed and self.accept(TokenType.COLON) else None, token.start
            )

        self.need_token(TokenType.L_PAREN, "(parameters)")
        parameters = self.items(parameter, TokenType.R_PAREN)
        self.need_token(TokenType.R_PAREN, ", or ) after a parameter")
        return tuple(parameters)

    def arity(self) -> int | None:
        """Parses `@2`, or `(a, b)` in the newer notation."""
        if self.accept(TokenType.PARAMETER):
            return int(self.need_token(TokenType.NUMBER, "the number of parameters after @").text)
        if self.accept(TokenType.L_PAREN):
            names = self.items(lambda: self.name("a parameter"), TokenType.R_PAREN)
            self.need_token(TokenType.R_PAREN, ")")
            return len(names)
        return None

    # ------------------------------------------------------------ types

    def type(self, *, within_open: bool = True) -> st.TypeText:
        """Parses a type. An object without OPEN or CLOSED is like the object around it."""
        if self.word("OPEN"):
            return self._object(is_open=True)
        if self.word("CLOSED"):
            return self._object(is_open=False)
        if self.accept(TokenType.L_BRACKET):
            item, optional = self.item_type(within_open=within_open)
            self.need_token(TokenType.R_BRACKET, "]")
            return st.CollectionText(item, optional, multiset=False)
        if self.at(TokenType.L_BRACE):
            if self.next_token.token_type == TokenType.L_BRACE:
                self.advance()
                self.advance()
                item, optional = self.item_type(within_open=within_open)
                self.need_token(TokenType.R_BRACE, "}}")
                self.need_token(TokenType.R_BRACE, "}}")
                return st.CollectionText(item, optional, multiset=True)
            return self._object(is_open=within_open)
        name = self.full_name("a type")
        if name.dataverse is None and name.name.lower() in PRIMITIVES:
            return PRIMITIVES[name.name.lower()]
        return name

    def item_type(self, *, within_open: bool = True) -> tuple[st.TypeText, bool]:
        """Parses a type, and whether a `?` after it makes the value optional."""
        return self.type(within_open=within_open), self.accept(TokenType.PLACEHOLDER)

    def _object(self, *, is_open: bool) -> st.ObjectText:
        def field() -> st.FieldText:
            offset = self.current.start
            name = self.advance().text if self.at(TokenType.STRING) else self.name("a field")
            self.need_token(TokenType.COLON, ": and a type after the field's name")
            kind, optional = self.item_type(within_open=is_open)
            return st.FieldText(name, kind, optional, offset)

        self.need_token(TokenType.L_BRACE, "{")
        fields = self.items(field, TokenType.R_BRACE)
        self.need_token(TokenType.R_BRACE, ", or } after a field")
        return st.ObjectText(tuple(fields), is_open)
