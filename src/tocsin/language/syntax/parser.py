"""Parses statements.

It accepts IF [NOT] EXISTS before the name, as in SQL, and after the name, as in AsterixDB.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import ClassVar

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from tocsin.language.functions.calls import BUILT_IN
from tocsin.language.syntax import statements as st
from tocsin.language.syntax.parser_channels import ChannelParser

INDEX_KINDS = ("BTREE", "RTREE", "KEYWORD")
_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")

# Tokens that can follow a misspelt keyword, but not a name that begins an expression.
_WORDS = (TokenType.VAR, TokenType.NUMBER, TokenType.STRING, TokenType.IDENTIFIER, TokenType.INTO)

# Tokens that follow a field or a function named CHANNEL. Any other token is the name of a channel.
_AFTER_EXPRESSION = (TokenType.DOT, TokenType.L_PAREN, TokenType.L_BRACKET)


class StatementParser(ChannelParser):
    """Parses whole statements. `OPENERS` maps the first word of a statement to its method."""

    OPENERS: ClassVar[dict[str, Callable[[StatementParser], st.Statement]]] = {}

    def begin(self, script: str, tokens: list[Token]) -> None:
        """Prepares the parser for the tokens of a statement."""
        self.reset()
        self.sql = script
        self._chunks = [tokens]
        self.first, self.last = tokens[0], tokens[-1]
        self.blamed = None
        self._within_open = True
        self._chunk_index = 0
        self._advance_chunk()

    def parse_one(self) -> st.Statement:
        """Parses a statement; without a known first word it must be a query or an expression."""
        first, start = self._curr, self._curr.start
        opener = self.OPENERS.get(first.text.upper()) if first.token_type != TokenType.STRING else None
        if opener is not None:
            self._advance()
            statement = opener(self)
        else:
            if first.token_type == TokenType.VAR and self._next.token_type in _WORDS:
                # No expression begins with two words, so the first must be a misspelt keyword.
                self.refuse(self._expected_statement(first), token=first)
            query = self._parse_statement()
            if query is None:
                self.refuse(self._expected_statement(first))
            statement = st.Query(query=query)
        self._at_end()
        object.__setattr__(statement, "offset", start)
        object.__setattr__(statement, "text", self.sql[start : self._prev.end + 1])
        return statement

    def _expected_statement(self, first: Token) -> str:
        words = [*sorted(self.OPENERS), "SELECT"]
        near = difflib.get_close_matches(first.text.upper(), words, 1)
        return f"Expected a statement: {', '.join(words)}" + (f"; did you mean {near[0]}?" if near else "")

    def parse_procedure(self) -> st.Statement:
        """Parses the body of a procedure."""
        statement = self._procedure_body()
        self._at_end()
        return statement

    def parse_body(self) -> exp.Expr:
        """Parses the body of a function."""
        body = self._parse_statement()
        if body is None:
            self.refuse("Expected a query or an expression")
        self._at_end()
        return body

    def _at_end(self) -> None:
        if self.here is not None:
            self.refuse("Invalid expression / Unexpected token")
        self.check_errors()

    # ------------------------------------------------------------ CREATE

    def _create(self) -> st.Statement:  # noqa: RET503 (refuse does not return)
        if self._word("DATAVERSE"):
            if_not_exists = self._if_not_exists()
            name = self._name("a dataverse")
            return st.CreateDataverse(name=name, if_not_exists=self._if_not_exists() or if_not_exists)
        if self._word("TYPE"):
            if_not_exists = self._if_not_exists()
            named = self._qualified("a type")
            if_not_exists = self._if_not_exists() or if_not_exists
            self._need("AS")
            return st.CreateType(name=named, type=self._type(), if_not_exists=if_not_exists)
        if self._word("ACTIVE"):
            self._need("DATASET")
            return self._create_dataset(active=True)
        if self._word("DATASET"):
            return self._create_dataset(active=False)
        if self._word("INDEX"):
            return self._create_index()
        if self._word("FUNCTION"):
            return self._create_function()
        if self._word("FEED"):
            if_not_exists = self._if_not_exists()
            named = self._qualified("a feed")
            if_not_exists = self._if_not_exists() or if_not_exists
            if self._curr.token_type != TokenType.WITH:
                self.refuse("Expected WITH {…}")
            return st.CreateFeed(name=named, options=self._options(), if_not_exists=if_not_exists)
        if self._word("BROKER"):
            return self._create_broker()
        if self._match_texts(("REPETITIVE", "CONTINUOUS")):
            return self._create_channel(continuous=self._prev.text.upper() == "CONTINUOUS")
        if self._word("CHANNEL"):
            self.refuse("Expected REPETITIVE or CONTINUOUS before CHANNEL", token=self._prev)
        if self._word("PROCEDURE"):
            return self._create_procedure()
        self.refuse(
            "Expected DATAVERSE, TYPE, [ACTIVE] DATASET, INDEX, FUNCTION, FEED, BROKER, REPETITIVE CHANNEL, "
            "CONTINUOUS CHANNEL or PROCEDURE after CREATE"
        )

    def _create_dataset(self, active: bool) -> st.Statement:
        if_not_exists = self._if_not_exists()
        name = self._qualified("a dataset")
        self._need_token(TokenType.L_PAREN, "(Type) after the dataset's name")
        kind = self._type()
        self._need_token(TokenType.R_PAREN, ")")
        if_not_exists = self._if_not_exists() or if_not_exists
        if not (self._match(TokenType.PRIMARY_KEY) or self._word("PRIMARY", "KEY")):
            self.refuse("Expected PRIMARY KEY")
        wrapped = self._match(TokenType.L_PAREN)
        keys = self._paths()
        if wrapped:
            self._need_token(TokenType.R_PAREN, ")")
        autogenerated = self._word("AUTOGENERATED")
        return st.CreateDataset(
            name=name, type=kind, keys=keys, autogenerated=autogenerated, active=active,
            options=self._options(), if_not_exists=if_not_exists,
        )  # fmt: skip

    def _create_index(self) -> st.Statement:
        if_not_exists = self._if_not_exists()
        name = self._name("an index")
        if_not_exists = self._if_not_exists() or if_not_exists
        self._need("ON")
        dataset = self._qualified("a dataset")
        self._need_token(TokenType.L_PAREN, "(fields)")
        fields = tuple(self._parse_csv(self._indexed_field))
        self._need_token(TokenType.R_PAREN, ")")
        kind = "BTREE"
        if self._word("TYPE"):
            if not self._match_texts(INDEX_KINDS):
                self.refuse(f"Expected {', '.join(INDEX_KINDS)}")
            kind = self._prev.text.upper()
        return st.CreateIndex(name=name, dataset=dataset, fields=fields, kind=kind, if_not_exists=if_not_exists)

    def _indexed_field(self) -> tuple[str, ...]:
        path = self._path()
        if self._match(TokenType.COLON):
            self._item()  # AsterixDB requires the type of an undeclared field; it has no effect here
        return path

    def _create_function(self) -> st.Statement:
        if_not_exists = self._if_not_exists()
        first = self._curr
        name = self._qualified("a function")
        if name.name.lower() in BUILT_IN:
            self.refuse(f"Expected a name of its own, {name.name} is a function of the language", token=first)
        if_not_exists = self._if_not_exists() or if_not_exists
        parameters = self._parameters()
        if_not_exists = self._if_not_exists() or if_not_exists
        if self._curr.token_type != TokenType.L_BRACE:
            return self._create_python_function(name, tuple(parameters), if_not_exists)
        self._need_token(TokenType.L_BRACE, "{ and the function's body")
        body = self._curr.start
        parsed = self._parse_statement()
        if parsed is None:
            self.refuse("Expected a query or an expression")
        end = self._curr.start
        self._need_token(TokenType.R_BRACE, "} after the function's body")
        return st.CreateFunction(
            name=name,
            parameters=parameters,
            body=self.sql[body:end].strip(),
            body_offset=body,
            if_not_exists=if_not_exists,
        )

    def _create_python_function(self, name: st.Name, parameters: tuple[str, ...], early: bool) -> st.Statement:
        returns, optional = self._item() if (has_type := self._word("RETURNS")) else (None, True)
        if not self._word("LANGUAGE"):
            self.refuse(
                "Expected LANGUAGE PYTHON" if has_type else "Expected { and the function's body, or LANGUAGE PYTHON"
            )
        self._need("PYTHON")
        if not self._match(TokenType.ALIAS):
            self.refuse('Expected AS "module:function"')
        offset = self._curr.start
        self._need_token(TokenType.STRING, '"module:function"')
        target = self._prev.text
        if _TARGET.fullmatch(target) is None:
            self.refuse('Expected "module:function"', token=self._prev)
        return st.CreatePythonFunction(
            name=name, parameters=parameters, returns=returns, optional=optional, target=target, target_offset=offset,
            if_not_exists=self._if_not_exists() or early,
        )  # fmt: skip

    # ------------------------------------------------------------ DROP, USE

    def _drop(self) -> st.Statement:  # noqa: RET503 (refuse does not return)
        if self._word("DATAVERSE"):
            if_exists = self._if_exists()
            name = self._name("a dataverse")
            return st.DropDataverse(name=name, if_exists=self._if_exists() or if_exists)
        if self._word("TYPE"):
            if_exists = self._if_exists()
            named = self._qualified("a type")
            return st.DropType(name=named, if_exists=self._if_exists() or if_exists)
        if self._word("DATASET"):
            if_exists = self._if_exists()
            named = self._qualified("a dataset")
            return st.DropDataset(name=named, if_exists=self._if_exists() or if_exists)
        if self._word("INDEX"):
            if_exists = self._if_exists()
            offset = self._curr.start
            parts = self._path()
            if len(parts) not in (2, 3):
                self.refuse("Expected dataset.index")
            dataset = st.Name(parts[-2], parts[0] if len(parts) == 3 else None, offset)
            return st.DropIndex(dataset=dataset, name=parts[-1], if_exists=self._if_exists() or if_exists)
        if self._word("FUNCTION"):
            if_exists = self._if_exists()
            named = self._qualified("a function")
            return st.DropFunction(name=named, arity=self._arity(), if_exists=self._if_exists() or if_exists)
        if self._word("FEED"):
            if_exists = self._if_exists()
            named = self._qualified("a feed")
            return st.DropFeed(name=named, if_exists=self._if_exists() or if_exists, force=self._word("FORCE"))
        if self._word("BROKER"):
            if_exists = self._if_exists()
            named = self._qualified("a broker")
            return st.DropBroker(name=named, if_exists=self._if_exists() or if_exists)
        if self._word("CHANNEL"):
            if_exists = self._if_exists()
            named = self._qualified("a channel")
            return st.DropChannel(name=named, if_exists=self._if_exists() or if_exists)
        if self._word("PROCEDURE"):
            if_exists = self._if_exists()
            named = self._qualified("a procedure")
            return st.DropProcedure(name=named, arity=self._arity(), if_exists=self._if_exists() or if_exists)
        self.refuse("Expected DATAVERSE, TYPE, DATASET, INDEX, FUNCTION, FEED, BROKER, CHANNEL or PROCEDURE after DROP")

    def _use(self) -> st.Statement:
        self._word("DATAVERSE")
        return st.Use(dataverse=self._name("a dataverse"))

    # ------------------------------------------------------------ feeds

    def _connect(self) -> st.Statement:
        self._need("FEED")
        feed = self._qualified("a feed")
        self._need("TO", "DATASET")
        dataset = self._qualified("a dataset")
        function = None
        if self._word("APPLY", "FUNCTION"):
            function = self._qualified("a function")
            self._arity()
        return st.ConnectFeed(feed=feed, dataset=dataset, function=function)

    def _disconnect(self) -> st.Statement:
        self._need("FEED")
        feed = self._qualified("a feed")
        self._need("FROM", "DATASET")
        return st.DisconnectFeed(feed=feed, dataset=self._qualified("a dataset"), force=self._word("FORCE"))

    def _start(self) -> st.Statement:
        self._need("FEED")
        return st.StartFeed(feed=self._qualified("a feed"))

    def _stop(self) -> st.Statement:
        self._need("FEED")
        return st.StopFeed(feed=self._qualified("a feed"))

    def _explain(self) -> st.Statement:
        if self._next.token_type not in _AFTER_EXPRESSION and self._word("CHANNEL"):
            return st.ExplainChannel(channel=self._qualified("a channel"))
        query = self._parse_statement()
        if query is None:
            self.refuse("Expected a query after EXPLAIN")
        return st.Explain(query=query)


StatementParser.OPENERS = {
    "CREATE": StatementParser._create,
    "DROP": StatementParser._drop,
    "USE": StatementParser._use,
    "INSERT": StatementParser._insert,
    "UPSERT": lambda parser: parser._insert(upsert=True),
    "DELETE": StatementParser._delete,
    "LOAD": StatementParser._load,
    "EXPLAIN": StatementParser._explain,
    "CONNECT": StatementParser._connect,
    "DISCONNECT": StatementParser._disconnect,
    "START": StatementParser._start,
    "STOP": StatementParser._stop,
    "SUBSCRIBE": StatementParser._subscribe,
    "UNSUBSCRIBE": StatementParser._unsubscribe,
    "CHANGE": StatementParser._change,
    "EXECUTE": StatementParser._execute,
}
