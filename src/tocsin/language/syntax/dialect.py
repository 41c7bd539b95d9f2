"""Parses queries and expressions: Spark SQL, plus the forms of SQL++.

Added to Spark's grammar: `SELECT VALUE | ELEMENT | RAW e`, `LET x = e`, `WITH x AS e`, FROM before SELECT,
`FROM d r UNNEST r.items i AT n`, `FROM r.items i`, `FROM [1, 2] x`, `{"a": 1, b: 2}`, `{{1, 2}}`,
`IS MISSING | UNKNOWN | VALUED`, `GROUP BY e AS k`, `GROUP AS g`, `SOME | EVERY x IN a SATISFIES c`, `//` comments.

The parser keeps every function call as it is written (`exp.Anonymous`). The translator and Spark decide what a name
means, not sqlglot's own catalogue of SQL functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from tocsin.language.syntax.nodes import (
    GROUP_FIELDS,
    POSITION,
    FieldOf,
    FromValue,
    IsKind,
    Let,
    MultisetOf,
    NumberedItems,
    ObjectOf,
    Positive,
    Quantified,
    ValueOf,
)

# sqlglot has no token for LET, so use PRAGMA, which this language lacks.
LET = TokenType.PRAGMA


class QueryParser(SparkParser):
    """Extends sqlglot's Spark parser with the forms of SQL++, and removes its catalogue of functions."""

    BRACKETS: ClassVar[Any] = {TokenType.L_BRACKET}
    FUNCTIONS: ClassVar[Any] = {}
    FUNCTION_PARSERS: ClassVar[Any] = {
        name: SparkParser.FUNCTION_PARSERS[name] for name in ("CAST", "TRY_CAST", "EXTRACT", "TRIM", "POSITION")
    }
    TRIM_PATTERN_FIRST: ClassVar[bool] = False  # trim(text, letters), as in SQL++
    NO_PAREN_FUNCTION_PARSERS: ClassVar[Any] = {"CASE": SparkParser.NO_PAREN_FUNCTION_PARSERS["CASE"]}
    NO_PAREN_FUNCTIONS: ClassVar[Any] = {
        TokenType.CURRENT_DATE: exp.CurrentDate,
        TokenType.CURRENT_TIMESTAMP: exp.CurrentTimestamp,
    }
    ID_VAR_TOKENS: ClassVar[Any] = SparkParser.ID_VAR_TOKENS - {LET, TokenType.UNNEST}
    TABLE_ALIAS_TOKENS: ClassVar[Any] = SparkParser.TABLE_ALIAS_TOKENS - {LET, TokenType.UNNEST}
    ALIAS_TOKENS: ClassVar[Any] = SparkParser.ALIAS_TOKENS - {LET, TokenType.UNNEST}
    STATEMENT_PARSERS: ClassVar[Any] = {}
    UNARY_PARSERS: ClassVar[Any] = {
        **SparkParser.UNARY_PARSERS,
        TokenType.PLUS: lambda self: self.expression(Positive(this=self._parse_unary())),
    }
    ARRAY_CONSTRUCTORS: ClassVar[Any] = {}  # so that a query can index a field named list or array
    STRICT_CAST: ClassVar[Any] = True

    PLACEHOLDER_PARSERS: ClassVar[Any] = {}

    error_token: Token | None = None
    _positions: dict[int, int]
    """The numbers of the parameters that are written as `?`, by their places."""

    def begin(self, script: str, tokens: list[Token]) -> None:
        """Prepares the parser for the tokens of one statement."""
        self.reset()
        self.sql = script
        self._chunks = [tokens]
        self._chunk_index = 0
        self._advance_chunk()
        self._positions = {}

    def refuse(self, message: str, token: Token | None = None) -> NoReturn:
        """Raises a syntax error at a token, or at the current token if none is given."""
        self.error_token = token
        self.raise_error(message, *([token] if token is not None else []))
        raise AssertionError("errors are raised at once")

    def _parse_statement(self) -> exp.Expr | None:
        # Only queries come here; sqlglot's own CREATE, DROP, … do not belong to the language.
        return self._parse_select() or self._parse_disjunction()

    # ------------------------------------------------------------ the orders of clauses

    def _parse_select_query(self, *args: Any, **options: Any) -> exp.Expr | None:
        """Parses a query, also one that begins with LET or FROM."""
        if self._match(LET):
            bindings = [exp.CTE(this=let.this, alias=exp.TableAlias(this=let.args["alias"]))
                        for let in self._parse_csv(self._parse_let)]  # fmt: skip
            return self._bind(bindings, self._parse_select())
        if self._curr.token_type == TokenType.FROM:
            query = self._parse_from_first()
            return self._parse_set_operations(query) if options.get("parse_set_operation", True) else query
        return super()._parse_select_query(*args, **options)

    def _bind(self, bindings: list[exp.CTE], query: exp.Expr | None) -> exp.Expr:
        """Returns the query with these names in front. `LET x = e SELECT` means `WITH x AS e SELECT`."""
        while isinstance(query, exp.Subquery) and query.is_wrapper:
            query = query.this
        if not isinstance(query, exp.Query) or isinstance(query, exp.Values):
            self.refuse("Expected SELECT or FROM after LET")
        inner = query.args.get("with_")
        names = [*bindings, *(inner.expressions if inner is not None else [])]
        query.set("with_", exp.With(expressions=names, recursive=inner is not None and inner.args.get("recursive")))
        return query

    def _parse_cte(self) -> exp.CTE:
        """Parses `name AS expression`: a query in parentheses, or any other expression."""
        alias = self._parse_table_alias(self.ID_VAR_TOKENS)
        if alias is None or alias.this is None or not self._match(TokenType.ALIAS):
            self.refuse("Expected WITH name AS expression")
        value = self._parse_disjunction()
        while isinstance(value, exp.Paren) or (isinstance(value, exp.Subquery) and value.is_wrapper):
            value = value.this
        if value is None:
            self.refuse("Expected an expression after AS")
        return self.expression(
            exp.CTE(this=self._values_to_select(value) if isinstance(value, exp.Values) else value, alias=alias)
        )

    def _parse_from_first(self) -> exp.Expr:
        """Parses `FROM … LET … WHERE … GROUP BY … HAVING … SELECT … ORDER BY …`."""
        sources = self._parse_query_modifiers(exp.Select(from_=self._parse_from()))
        if self._curr.token_type != TokenType.SELECT or any(sources.args.get(clause) for clause in _AFTER_SELECT):
            self.refuse("Expected SELECT after FROM, WHERE and GROUP BY")
        select = super()._parse_select_query(parse_set_operation=False)
        assert isinstance(select, exp.Select)
        for clause, value in sources.args.items():
            if value and select.args.get(clause):
                self.refuse(f"Expected {clause.strip('_').upper()} once, before SELECT")
            if value:
                select.set(clause, value)
        return select

    # ------------------------------------------------------------ SELECT VALUE, LET, UNNEST

    def _parse_projections(self) -> tuple[list[exp.Expr], list[exp.Expr] | None]:
        is_word = self._curr.token_type not in (TokenType.STRING, TokenType.IDENTIFIER)
        if is_word and self._curr.text.upper() in _VALUE and self._next.token_type not in _AFTER_COLUMN:
            word = self._curr.text.upper()
            self._advance()
            value = self._parse_disjunction()
            if value is None:
                self.refuse(f"Expected an expression after {word}")
            return [self.expression(ValueOf(this=value))], None
        projections, excluded = super()._parse_projections()
        if not projections:
            self.refuse("Expected an expression")
        return projections, excluded

    def _parse_query_modifiers(self, this: Any) -> Any:
        """Parses joins, UNNEST and LET in any order, then the clauses from WHERE on."""
        if isinstance(this, exp.Select):
            while True:
                for join in self._parse_joins():
                    this.append("joins", join)
                outer = self._match_text_seq("LEFT", "UNNEST", advance=False) or self._match_text_seq(
                    "LEFT", "OUTER", "UNNEST", advance=False
                )
                if outer or self._match_text_seq("INNER", "UNNEST", advance=False):
                    while self._curr.token_type != TokenType.UNNEST:
                        self._advance()
                if self._match(TokenType.UNNEST) or self._match_text_seq("FLATTEN"):
                    this.append("joins", exp.Join(this=self._parse_collection(outer=outer)))
                elif self._match(LET):
                    for binding in self._parse_csv(self._parse_let):
                        this.append("joins", exp.Join(this=binding))
                else:
                    break
            if self._curr.token_type == TokenType.WITH and self._next.token_type in _NAMES:
                self.refuse("Expected LET x = … after FROM: WITH begins a query")
            self._number_items(this)
        this = super()._parse_query_modifiers(this)
        while isinstance(this, exp.Select) and this.args.get("group") and self._match(LET):
            # After GROUP BY, a LET names a value of the group.
            for binding in self._parse_csv(self._parse_let):
                this.append("group_lets", binding)
            this = super()._parse_query_modifiers(this)
        return this

    def _number_items(self, select: exp.Select) -> None:
        """Rewrites `source AS x AT i`: a hidden variable ranges over the numbered items, and LET names its parts."""
        first = select.args.get("from_")
        joins = [*([exp.Join(this=first.this)] if first is not None else []), *(select.args.get("joins") or [])]
        if not any(_position(join.this) for join in joins):
            return
        sources: list[exp.Join] = []
        for join in joins:
            source, position = join.this, _position(join.this)
            sources.append(join)
            if position is None:
                continue
            if any(join.args.get(part) for part in ("on", "using", "side")):
                self.refuse("Expected no AT in a JOIN: write UNNEST … AS x AT i", token=self._prev)
            alias = source.args["alias"]
            hidden = exp.to_identifier(f" at {self._index} {len(sources)}", quoted=True)
            source.set("alias", exp.TableAlias(this=alias.this))
            numbered = FromValue(
                this=NumberedItems(this=source.copy()),
                alias=exp.TableAlias(this=hidden),
                outer=source.args.get("outer"),
            )
            join.set("this", numbered)
            for name, field in ((alias.this, "item"), (position, "position")):
                value = exp.column(exp.to_identifier(field, quoted=True), table=hidden.copy())
                sources.append(exp.Join(this=Let(this=value, alias=name, is_range=field == "item")))
        select.set("from_", exp.From(this=sources[0].this))
        select.set("joins", sources[1:])

    def _parse_let(self) -> exp.Expr:
        name = self._parse_id_var()
        if name is None or not self._match(TokenType.EQ):
            self.refuse("Expected LET name = expression")
        return self.expression(Let(this=self._parse_disjunction(), alias=name))

    def _parse_collection(self, outer: bool = False) -> exp.Expr:
        value = self._parse_disjunction()
        if value is None:
            self.refuse("Expected an expression that yields an array")
        alias = self._parse_table_alias(self.TABLE_ALIAS_TOKENS)
        return self.expression(FromValue(this=value, alias=alias, outer=outer))

    def _parse_table(self, *args: Any, **options: Any) -> exp.Expr | None:
        if self._curr.token_type in (TokenType.L_BRACKET, TokenType.PARAMETER, TokenType.PLACEHOLDER):
            return self._parse_collection()
        return super()._parse_table(*args, **options)

    def _parse_table_part(self, *args: Any, **options: Any) -> Any:
        if self._curr.token_type == TokenType.STRING:
            self.refuse(f"Expected a dataset: {_shown(self._curr.text)} in quotes is a text, write it without quotes")
        return super()._parse_table_part(*args, **options)

    def _parse_table_alias(self, alias_tokens: Any = None) -> exp.TableAlias | None:
        """Parses the variable of a source, and the variable of AT. Without a name, a path has that of its last part."""
        if not self._at_position():
            alias = super()._parse_table_alias(alias_tokens)
        elif self._prev.token_type in _NAMES:
            alias = exp.TableAlias(this=exp.to_identifier(self._prev.text, quoted=True))
        else:
            self.refuse("Expected AS name before AT")
        if alias is not None and self._at_position():
            self._advance()
            alias.set(POSITION, self._parse_id_var(any_token=False))
        return alias

    def _at_position(self) -> bool:
        """Whether AT and a variable follow."""
        return self._curr.text.upper() == "AT" and self._next.token_type in _NAMES

    def _parse_group(self, skip_group_by_token: bool = False) -> exp.Group | None:
        if not skip_group_by_token and not self._match(TokenType.GROUP_BY):
            return None
        keys = self._parse_csv(
            lambda: (
                self._parse_grouping_sets()
                or self._parse_cube_or_rollup()
                or self._parse_alias(self._parse_disjunction(), explicit=True)
            )
        )
        if not keys:
            self.refuse("Expected an expression")
        group = exp.Group(expressions=keys)
        if self._match_text_seq("WITH", "ROLLUP") or self._match_text_seq("WITH", "CUBE"):
            group.set(self._prev.text.lower(), [exp.Rollup() if self._prev.text.upper() == "ROLLUP" else exp.Cube()])
        group = self.expression(group)
        if self._match_text_seq("GROUP", "AS"):
            group.set("totals", self._parse_id_var())  # stores the name of GROUP AS: Spark's grammar has no `totals`
            if self._match(TokenType.L_PAREN):
                members = self._parse_csv(lambda: self._parse_alias(self._parse_disjunction(), explicit=True))
                if not all(isinstance(member, exp.Alias) for member in members) or not self._match(TokenType.R_PAREN):
                    self.refuse("Expected GROUP AS name(variable AS field, …)")
                group.set(GROUP_FIELDS, members)
        return group

    # ------------------------------------------------------------ constructors

    def _parse_types(self, *args: Any, **options: Any) -> exp.Expr | None:
        # sqlglot would read a type name in backticks like a plain one, but here backticks always mean a name.
        return None if self._curr.token_type == TokenType.IDENTIFIER else super()._parse_types(*args, **options)

    def _parse_primary(self) -> exp.Expr | None:
        if self._curr.token_type == TokenType.L_BRACE:
            return self._parse_object()
        if self._curr.token_type == TokenType.STRING:
            return self._parse_text()
        if self._curr.token_type in (TokenType.PARAMETER, TokenType.PLACEHOLDER, TokenType.DOLLAR):
            return self._parse_statement_parameter()
        return super()._parse_primary()

    def _parse_statement_parameter(self) -> exp.Expr:
        """Parses `$name`, `$1`, or `?`, which stands for the next number in its statement: a variable that has a value
        if the request gives one. Its name begins with a dollar sign."""
        token = self._curr
        if self._prev.token_type == TokenType.DOT:
            self.refuse("Expected a name: a parameter is a value", token=token)
        if token.token_type == TokenType.PLACEHOLDER:
            # By its place, because the parser may read a token twice.
            name = str(self._positions.setdefault(token.start, len(self._positions) + 1))
        else:
            following = self._next
            is_word = following.token_type not in (TokenType.STRING, TokenType.IDENTIFIER)
            is_name = is_word and following.text.replace("_", "a").isalnum()
            if token.text != "$" or following.start != token.end + 1 or not is_name:
                self.refuse(_NO_PARAMETERS, token=token)
            self._advance()
            name = following.text
        self._advance()
        return self.expression(exp.Column(this=exp.to_identifier(f"${name}", quoted=True)), token=token)

    def _parse_text(self) -> exp.Expr:
        """Parses a string. A doubled quote stands for one quote, and adjacent strings form one string."""
        first = self._curr
        self._advance()
        text = first.text
        while self._curr.token_type == TokenType.STRING:
            quote = self.sql[self._prev.end] if self._is_connected() else ""
            text += quote + self._curr.text
            self._advance()
        return self.expression(exp.Literal.string(text), token=first)

    def _parse_object(self) -> exp.Expr:
        self._advance()
        if self._match(TokenType.L_BRACE):
            items = [] if self._curr.token_type == TokenType.R_BRACE else self._parse_csv(self._parse_disjunction)
            if not self._match_pair(TokenType.R_BRACE, TokenType.R_BRACE):
                self.refuse("Expected , or }} in a multiset")
            return self.expression(MultisetOf(expressions=items))
        fields = [] if self._curr.token_type == TokenType.R_BRACE else self._parse_csv(self._parse_object_field)
        if not self._match(TokenType.R_BRACE):
            self.refuse("Expected , or } in an object")
        return self.expression(ObjectOf(expressions=fields))

    def _parse_object_field(self) -> exp.Expr:
        start = self._curr
        if self._next.token_type == TokenType.COLON:
            if start.token_type in (TokenType.NUMBER, TokenType.R_BRACE, TokenType.COMMA):
                self.refuse("Expected a field name")
            name = start.text
            self._advance(2)
            value = self._parse_disjunction()
        else:
            value = self._parse_disjunction()
            name = value.name if isinstance(value, exp.Column | exp.Dot) else ""
            if not name:
                self.refuse("Expected a field such as name: value", token=start)
        if value is None:
            self.refuse("Expected a value")
        return self.expression(FieldOf(this=exp.Literal.string(name).update_positions(start), expression=value))

    # ------------------------------------------------------------ predicates

    def _parse_is(self, this: exp.Expr | None) -> exp.Expr | None:
        negated = self._match(TokenType.NOT)
        if self._match_texts(("MISSING", "UNKNOWN", "VALUED", "KNOWN")) or self._match(TokenType.NULL):
            kind = self._prev.text.upper()
            test: exp.Expr = self.expression(IsKind(this=this, kind="VALUED" if kind == "KNOWN" else kind))
            return self.expression(exp.Not(this=test)) if negated else test
        if negated:
            self._retreat(self._index - 1)
        return super()._parse_is(this)

    def _parse_unary(self) -> exp.Expr | None:
        """Parses EXISTS without parentheses, and SOME, ANY and EVERY … SATISFIES."""
        if self._curr.token_type == TokenType.EXISTS and self._next.token_type != TokenType.L_PAREN:
            self._advance()
            return self.expression(exp.Exists(this=self._parse_bitwise()))
        if self._curr.text.upper() in ("SOME", "ANY", "EVERY") and self._curr.token_type not in (
            TokenType.STRING,
            TokenType.IDENTIFIER,
        ):
            start = self._index
            both = self._match_text_seq("SOME", "AND", "EVERY") or self._match_text_seq("ANY", "AND", "EVERY")
            every = not both and self._curr.text.upper() == "EVERY"
            if not both:
                self._advance()
            if self._next.token_type == TokenType.IN:
                return self._parse_quantified((False, True) if both else (every,))
            self._retreat(start)
        return super()._parse_unary()

    def _parse_quantified(self, kinds: Sequence[bool]) -> exp.Expr:
        """Parses the rest of SOME … SATISFIES and EVERY … SATISFIES; `kinds` says of each whether it is EVERY."""
        ranges = self._parse_csv(self._parse_one_of)
        if not self._match_text_seq("SATISFIES"):
            self.refuse("Expected SATISFIES")
        condition = self._parse_disjunction()
        self._match(TokenType.END)
        tests: list[exp.Expr] = []
        for every in kinds:
            test: Any = condition.copy() if condition is not None else None
            for name, collection in reversed(ranges):
                alias, items = name.copy(), collection.copy()
                test = self.expression(Quantified(this=items, alias=alias, condition=test, every=every))
            tests.append(test)
        return tests[0] if len(tests) == 1 else exp.Paren(this=exp.and_(*tests))

    def _parse_one_of(self) -> Any:
        name = self._parse_id_var(any_token=True)
        if not self._match(TokenType.IN):
            self.refuse("Expected IN")
        return name, self._parse_bitwise()

    def _parse_in(self, this: exp.Expr | None, alias: bool = False) -> exp.In:
        if self._curr.token_type in (TokenType.L_PAREN, TokenType.L_BRACKET):
            return super()._parse_in(this, alias=alias)
        return self.expression(exp.In(this=this, field=self._parse_bitwise()))


def _shown(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}…"


def _position(source: exp.Expr) -> exp.Expr | None:
    """Returns the variable of AT."""
    alias = source.args.get("alias")
    return alias.args.get(POSITION) if isinstance(alias, exp.TableAlias) else None


_NO_PARAMETERS = "Expected an expression; a statement has no parameters of this form, write $name or the value itself"

_NAMES = (TokenType.VAR, TokenType.IDENTIFIER)
_VALUE = ("VALUE", "ELEMENT", "RAW")
_AFTER_SELECT = ("order", "limit", "offset")

# The tokens that may follow a column named VALUE.
_AFTER_COLUMN = {
    TokenType.COMMA, TokenType.FROM, TokenType.DOT, TokenType.ALIAS, TokenType.SENTINEL, TokenType.R_PAREN,
    TokenType.R_BRACE, TokenType.EQ, TokenType.SLASH, TokenType.LT, TokenType.GT, TokenType.IS,
    TokenType.STAR,
}  # fmt: skip

# Keywords of Spark that are plain names here: our own types and constructors, or words without a meaning.
_PLAIN = ("UUID", "POINT", "POLYGON", "TIME", "DATETIME", "OBJECT", "RING", "LINESTRING", "SHOW", "NAME")
# Keywords that SQL has and this language lacks; some would make sqlglot read the rest of the statement as one text.
_OF_SQL = (TokenType.BLOCK_START, TokenType.BLOCK_END, TokenType.COMMAND, TokenType.PRAGMA, TokenType.EXECUTE)


class Tocsin(Spark):
    """The language's dialect: Spark's tokens with `//` comments and LET, without SQL's commands and hints."""

    class Tokenizer(Spark.Tokenizer):
        COMMENTS: ClassVar[Any] = ["--", "//", ("/*", "*/")]
        NESTED_COMMENTS = False
        KEYWORDS: ClassVar[Any] = {
            **{
                word: kind
                for word, kind in Spark.Tokenizer.KEYWORDS.items()
                if kind not in _OF_SQL and kind != TokenType.HINT and word not in _PLAIN
            },
            "LET": LET,
            "LETTING": LET,
            "CORRELATE": TokenType.UNNEST,
        }

    Parser = QueryParser
