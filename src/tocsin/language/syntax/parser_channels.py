"""Parses statements about brokers, channels, subscriptions and procedures.

It is more liberal than AsterixDB: PERIOD and WITH may come before or after a body, in any order.
"""

from __future__ import annotations

from typing import Any

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from tocsin.language.syntax import statements as st
from tocsin.language.syntax.parser_data import DataParser
from tocsin.rules.model.values import Duration
from tocsin.rules.periods import parse_period

_DURATIONS = ("DURATION", "DAY_TIME_DURATION", "YEAR_MONTH_DURATION")
_A_DURATION = 'Expected a duration such as duration("PT20S")'


class ChannelParser(DataParser):
    # ------------------------------------------------------------ brokers

    """Parses statements about brokers, channels, subscriptions and procedures."""

    def _create_broker(self) -> st.Statement:
        if_not_exists = self._if_not_exists()
        name = self._qualified("a broker")
        if_not_exists = self._if_not_exists() or if_not_exists
        self._need("AT")
        url = self._text("the broker's address in quotes")
        return st.CreateBroker(name=name, url=url, if_not_exists=self._if_not_exists() or if_not_exists)

    def _text(self, what: str) -> str:
        if self.here is None or self._curr.token_type != TokenType.STRING:
            self.refuse(f"Expected {what}")
        return str(self._parse_text().this)

    # ------------------------------------------------------------ channels

    def _create_channel(self, continuous: bool) -> st.Statement:
        push = self._word("PUSH")
        self._need("CHANNEL")
        if_not_exists = self._if_not_exists()
        name = self._qualified("a channel")
        if_not_exists = self._if_not_exists() or if_not_exists
        parts: dict[str, Any] = {"continuous": continuous, "push": push}
        if self._word("USING"):
            parts["function"] = self._qualified("a function")
            parts["arity"] = self._arity()
            self._clauses(parts)
        elif self._match(TokenType.L_PAREN):
            seen: set[str] = set()
            if self._curr.token_type != TokenType.R_PAREN:
                parts["parameters"] = tuple(self._parse_csv(lambda: self._typed_parameter(seen)))
            self._need_token(TokenType.R_PAREN, ", or ) after a parameter")
            if_not_exists = self._if_not_exists() or if_not_exists
            self._clauses(parts)
            parts["body_offset"], parts["body"] = self._braced("the channel's query", self._query_body)
            self._clauses(parts)
        else:
            self.refuse("Expected USING function@arity, or (parameters) and { query }")
        if not continuous and parts.get("period") is None:
            self.refuse("Expected PERIOD and a duration: a repetitive channel runs once a period")
        return st.CreateChannel(name=name, if_not_exists=if_not_exists, **parts)

    def _typed_parameter(self, seen: set[str]) -> st.ChannelParameter:
        offset = self._curr.start
        name = self._new_parameter(seen)
        return st.ChannelParameter(name, self._type() if self._match(TokenType.COLON) else None, offset)

    def _clauses(self, said: dict[str, Any]) -> None:
        """Parses PERIOD and WITH, each at most once."""
        while self.here is not None:
            clause = self._curr
            if self._word("PERIOD"):
                self._once("period", said, clause)
                said["period"] = self._period()
            elif clause.token_type == TokenType.WITH:
                self._once("options", said, clause)
                said["options"] = self._options()
            else:
                return

    def _once(self, part: str, said: dict[str, Any], clause: Token) -> None:
        if part in said:
            self.refuse(f"Expected {clause.text.upper()} once", token=clause)

    def _period(self) -> Duration:
        """Parses the duration after PERIOD: a text, or a constructor around a text."""
        wrapped = self._match_texts(_DURATIONS)
        if wrapped:
            self._need_token(TokenType.L_PAREN, '("PT20S")')
        token = self._curr
        if self.here is None or token.token_type != TokenType.STRING:
            self.refuse(_A_DURATION)
        try:
            period = parse_period(self._text("a duration"))
        except ValueError as error:
            self.refuse(str(error), token=token)
        if wrapped:
            self._need_token(TokenType.R_PAREN, ")")
        return period

    def _braced(self, what: str, parse: Any) -> tuple[int, str]:
        """Parses text in braces with `parse`; returns the place where it begins, and the text."""
        self._need_token(TokenType.L_BRACE, f"{{ and {what}")
        start = self._curr.start
        parse()
        end = self._prev.end + 1
        self._match(TokenType.SEMICOLON)
        self._need_token(TokenType.R_BRACE, f"}} after {what}")
        return start, self.sql[start:end]

    def _query_body(self) -> exp.Expr:
        query = self._parse_statement()
        if query is None:
            self.refuse("Expected a query")
        return query

    # ------------------------------------------------------------ subscriptions

    def _arguments(self) -> tuple[exp.Expr, ...]:
        self._need_token(TokenType.L_PAREN, "(arguments)")
        arguments = [] if self._curr.token_type == TokenType.R_PAREN else self._parse_csv(self._argument)
        self._need_token(TokenType.R_PAREN, ", or ) after an argument")
        return tuple(arguments)

    def _argument(self) -> exp.Expr:
        argument = self._parse_disjunction()
        if argument is None:
            self.refuse("Expected an expression")
        return argument

    def _subscribe(self) -> st.Statement:
        self._need("TO")
        channel = self._qualified("a channel")
        arguments = self._arguments()
        self._need("ON")
        return st.SubscribeStatement(channel=channel, arguments=arguments, broker=self._qualified("a broker"))

    def _unsubscribe(self) -> st.Statement:
        subscription = self._text("a subscription's id in quotes")
        self._need("FROM")
        return st.UnsubscribeStatement(subscription=subscription, channel=self._qualified("a channel"))

    def _change(self) -> st.Statement:
        self._need("SUBSCRIPTION")
        subscription = self._text("a subscription's id in quotes")
        self._need("ON")
        channel = self._qualified("a channel")
        arguments = self._arguments() if self._curr.token_type == TokenType.L_PAREN else None
        self._need("TO")
        return st.ChangeSubscription(
            subscription=subscription, channel=channel, arguments=arguments, broker=self._qualified("a broker")
        )

    # ------------------------------------------------------------ procedures

    def _create_procedure(self) -> st.Statement:
        if_not_exists = self._if_not_exists()
        name = self._qualified("a procedure")
        if_not_exists = self._if_not_exists() or if_not_exists
        parameters = self._parameters()
        if_not_exists = self._if_not_exists() or if_not_exists
        offset, body = self._braced("the procedure's statement", self._procedure_body)
        period = None
        if self._word("PERIOD"):
            clause = self._prev
            if parameters:
                self.refuse(
                    "Expected no PERIOD: nobody gives arguments to a procedure that runs by itself", token=clause
                )
            period = self._period()
        return st.CreateProcedure(
            name=name, parameters=parameters, body=body, body_offset=offset, period=period, if_not_exists=if_not_exists
        )

    def _procedure_body(self) -> st.Statement:
        if self._word("INSERT"):
            return self._insert()
        if self._word("UPSERT"):
            return self._insert(upsert=True)
        if self._match(TokenType.DELETE):
            return self._delete()
        query = self._parse_statement()
        if query is None:
            self.refuse("Expected an INSERT, an UPSERT, a DELETE or a query")
        return st.Query(query=query)

    def _execute(self) -> st.Statement:
        return st.Execute(procedure=self._qualified("a procedure"), arguments=self._arguments())
