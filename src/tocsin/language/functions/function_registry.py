"""Names every function that a query may call, except the catalog's functions. A new function is registered here.

A Spark function that is not listed is refused. The list omits functions that read files, call Java or reveal facts
about the machine (`reflect`, `input_file_name`, `from_xml`, `current_user`, …), and those without meaning in this
language (sketches, catalogs, collations). Our own functions are implemented in the modules beside this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import SequenceMatcher
from typing import Final

from sqlglot import exp

from tocsin.language.functions import (
    geo_functions,
    kind_functions,
    number_arguments,
    object_functions,
    spatial_functions,
    string_functions,
    temporal_functions,
    text_search,
)
from tocsin.language.functions.collections import array_aggregates, array_functions
from tocsin.language.types.typed_sql import TypedSql
from tocsin.rules.did_you_mean import did_you_mean
from tocsin.rules.model import types as t
from tocsin.rules.model.types import ArrayType, Type

SPARK_FUNCTIONS: Final[dict[str, frozenset[str]]] = {
    kind: frozenset(names.split())
    for kind, names in {
        "numbers": (
            "abs acos acosh asin asinh atan atan2 atanh bin bit_count bit_get bround cbrt ceil ceiling conv cos cosh"
            " cot csc degrees div e exp expm1 factorial floor getbit greatest hypot least ln log log10 log1p log2 mod"
            " nanvl negative pi pmod positive pow power radians rand randn random rint round sec shiftleft shiftright"
            " shiftrightunsigned sign signum sin sinh sqrt tan tanh try_add try_divide try_mod try_multiply"
            " try_subtract uniform width_bucket"
        ),
        "texts": (
            "ascii base64 bit_length btrim char char_length character_length chr concat concat_ws contains crc32 decode"
            " elt encode endswith find_in_set format_number format_string hex ilike initcap instr is_valid_utf8 lcase"
            " left len length levenshtein like locate lower lpad ltrim luhn_check make_valid_utf8 mask md5 octet_length"
            " overlay parse_url position printf quote randstr regexp regexp_count regexp_extract regexp_extract_all"
            " regexp_instr regexp_like regexp_replace regexp_substr repeat replace reverse right rlike rpad rtrim"
            " sentences sha sha1 sha2 soundex space split split_part startswith substr substring substring_index"
            " to_binary to_char to_number to_varchar translate trim try_parse_url try_to_binary try_to_number"
            " try_url_decode try_validate_utf8 ucase unbase64 unhex upper url_decode url_encode uuid validate_utf8"
        ),
        "moments": (
            "add_months convert_timezone curdate current_date current_time current_timestamp current_timezone date"
            " date_add date_diff date_format date_from_unix_date date_part date_sub date_trunc dateadd datediff"
            " datepart day dayname dayofmonth dayofweek dayofyear extract from_unixtime from_utc_timestamp hour"
            " last_day localtimestamp make_date make_dt_interval make_interval make_time make_timestamp"
            " make_timestamp_ltz make_timestamp_ntz make_ym_interval minute month monthname months_between next_day"
            " now quarter second session_window time time_bucket time_diff time_from_micros time_from_millis"
            " time_from_seconds time_to_micros time_to_millis time_to_seconds time_trunc timestamp"
            " timestamp_micros timestamp_millis timestamp_seconds to_date to_time to_timestamp to_timestamp_ltz"
            " to_timestamp_ntz to_unix_timestamp to_utc_timestamp trunc try_make_interval try_make_timestamp"
            " try_make_timestamp_ltz try_make_timestamp_ntz try_to_date try_to_time try_to_timestamp"
            " unix_date unix_micros unix_millis unix_seconds unix_timestamp weekday weekofyear window window_time year"
        ),
        "arrays and maps": (
            "aggregate array array_append array_compact array_contains array_distinct array_except array_insert"
            " array_intersect array_join array_max array_min array_position array_prepend array_remove array_repeat"
            " array_size array_sort array_union arrays_overlap arrays_zip cardinality element_at exists explode"
            " explode_outer filter flatten forall get inline inline_outer map map_concat map_contains_key map_entries"
            " map_filter map_from_arrays map_from_entries map_keys map_values map_zip_with named_struct posexplode"
            " posexplode_outer reduce sequence shuffle size slice sort_array stack str_to_map struct transform"
            " transform_keys transform_values try_element_at vector_cosine_similarity vector_inner_product"
            " vector_l2_distance vector_norm vector_normalize zip_with"
        ),
        "JSON, CSV and untyped values": (
            "from_csv from_json get_json_object is_valid_variant is_variant_null json_array_length json_object_keys"
            " json_tuple parse_json schema_of_csv schema_of_json schema_of_variant schema_of_variant_agg to_csv to_json"
            " to_variant_object to_xml try_parse_json try_variant_get variant_get"
        ),
        "conditions and types": (
            "assert_true between bigint binary boolean cast coalesce decimal double equal_null float hash if ifnull"
            " int isnan isnotnull isnull nullif nullifzero nvl nvl2 raise_error smallint string tinyint typeof when"
            " xxhash64 zeroifnull"
        ),
        "aggregates": (
            "any any_value approx_count_distinct approx_percentile approx_top_k array_agg avg bit_and bit_or bit_xor"
            " bool_and bool_or collect_list collect_set corr count count_if covar_pop covar_samp every"
            " first first_value grouping grouping_id histogram_numeric kurtosis last last_value listagg max max_by mean"
            " median min min_by mode percentile percentile_approx percentile_cont percentile_disc regr_avgx regr_avgy"
            " regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy skewness some std stddev"
            " stddev_pop stddev_samp string_agg sum try_avg try_sum var_pop var_samp variance vector_avg vector_sum"
        ),
        "windows": (
            "cume_dist dense_rank lag lead monotonically_increasing_id nth_value ntile percent_rank rank row_number"
            " spark_partition_id"
        ),
    }.items()
}
"""The functions by kind, as the documentation lists them."""

NAMES: Final = frozenset().union(*SPARK_FUNCTIONS.values())
TABLE_FUNCTIONS: Final = frozenset(
    "explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer range stack".split()
)
UNITS: Final = frozenset(
    "year yearofweek quarter month week day dayofweek dow dayofweek_iso dow_iso doy hour minute second millisecond"
    " microsecond years quarters months weeks days hours minutes seconds milliseconds microseconds".split()
)
"""The units that EXTRACT and INTERVAL take."""

# ---------------------------------------------------------------- our functions, and how Spark's are called

OURS: Final[dict[str, Callable[[Sequence[TypedSql]], TypedSql]]] = {
    **spatial_functions.FUNCTIONS, **geo_functions.FUNCTIONS, **temporal_functions.FUNCTIONS,
}  # fmt: skip

# SQL++'s functions of any values. One that returns None leaves the call to Spark's function of the same name.
OF_VALUES: Final[dict[str, Callable[[str, Sequence[TypedSql]], TypedSql | None]]] = {
    **kind_functions.FUNCTIONS, **object_functions.FUNCTIONS, **string_functions.FUNCTIONS,
    "trunc": number_arguments.truncate,
}  # fmt: skip
# Functions that compare their arguments; `translate/comparing_calls.py` implements them.
COMPARING: Final = frozenset(
    (
        "deep_equal equal_null greatest if if_inf if_nan if_nan_or_inf ifinf ifnan ifnanorinf least missing_if"
        " missingif null_if nullif switch_case"
    ).split()
)

# The types that our functions try for an untyped argument.
GUESSES: Final[tuple[Type, ...]] = (
    t.STRING, *t.SPATIAL, t.DOUBLE, t.DATETIME, t.DATE, t.TIME, t.DURATION, t.UUID, ArrayType(t.DOUBLE),
)  # fmt: skip

# Functions that Spark has under another name than SQL++.
SPARK_NAMES: Final = {
    "lowercase": "lower", "uppercase": "upper", "string_length": "length", "codepoint_length": "length",
    "to_string": "string", "title": "initcap", "int8": "tinyint", "int16": "smallint", "int32": "int",
    "int64": "bigint", "edit_distance": "levenshtein", "create_uuid": "uuid",
    "string_contains": "contains", "starts_with": "startswith", "ends_with": "endswith",
    "regexp_contains": "rlike", "if_missing": "coalesce", "if_null": "coalesce", "if_missing_or_null": "coalesce",
    "ifmissing": "coalesce", "ifmissingornull": "coalesce",
}  # fmt: skip

NUMERIC: Final = frozenset(
    (
        "abs acos asin atan atan2 cbrt ceil ceiling cos cosh degrees exp floor ln log log10 log2 mod power pow "
        "radians round bround sign signum sin sinh sqrt tan tanh sum avg mean stddev stddev_pop stddev_samp variance "
        "var_pop var_samp corr covar_pop covar_samp median percentile percentile_approx greatest least skewness "
        "kurtosis "
    ).split()
)
KEEP_INTEGERS: Final = frozenset("abs greatest least mod negative positive sign".split())
# Functions of Spark whose untyped arguments are arrays, and those among them whose further arguments are numbers.
COLLECTIONS: Final = frozenset(
    (
        "aggregate arrays_zip element_at exists explode explode_outer filter forall get posexplode posexplode_outer "
        "reduce shuffle slice transform try_element_at zip_with "
    ).split()
)
INDEXED: Final = frozenset("element_at get slice try_element_at".split())
# Functions on a date or time: an untyped argument becomes a datetime.
MOMENTS: Final = frozenset(
    (
        "year quarter month day dayofmonth dayofweek dayofyear weekday weekofyear hour minute second last_day to_date "
        "monthname dayname unix_date unix_micros unix_millis unix_seconds to_timestamp date timestamp "
    ).split()
)
AGGREGATES: Final = frozenset(
    (
        "any any_value approx_count_distinct approx_percentile array_agg avg bit_and bit_or bit_xor bool_and bool_or "
        "collect_list collect_set corr count count_if covar_pop covar_samp every first first_value "
        "grouping grouping_id histogram_numeric kurtosis last last_value listagg max max_by mean median min min_by "
        "mode percentile percentile_approx percentile_cont percentile_disc regr_avgx regr_avgy regr_count regr_r2 "
        "skewness some std stddev stddev_pop stddev_samp string_agg sum try_avg try_sum var_pop var_samp variance "
    ).split()
)
MOMENTS_OF_NOW: Final = {
    "current_datetime": t.DATETIME, "current_timestamp": t.DATETIME, "now": t.DATETIME, "current_date": t.DATE,
    "current_time": t.TIME,
}  # fmt: skip
CHANNEL_TIMES: Final = frozenset(("previous_channel_time", "current_channel_time"))
# Functions about active records and executions, which channels translate in their own way.
CHANNELS_OWN: Final = frozenset(("is_new", "active_timestamp", "meta", *CHANNEL_TIMES))
# Names that a function of the catalog may not have.
BUILT_IN: Final = frozenset((*OURS, text_search.FTCONTAINS, *AGGREGATES, *CHANNELS_OWN))
NONDETERMINISTIC: Final = frozenset(
    "rand random randn uuid shuffle monotonically_increasing_id randstr uniform".split()
)
CALLABLE: Final = frozenset(
    (
        *OURS, text_search.FTCONTAINS, *SPARK_NAMES, *MOMENTS_OF_NOW, *CHANNELS_OWN, *NAMES,
        *array_functions.NAMES, *array_aggregates.FUNCTIONS, *OF_VALUES, *COMPARING, *kind_functions.IS_OPERATORS,
    )
)  # fmt: skip
"""Every function that a query may call, apart from the catalog's functions."""
ONCE: Final = "once"  # marks a call that is too expensive to repeat, such as a call into Python


def is_computed_once(sql: exp.Expr) -> bool:
    """Whether an expression must be computed once per row: it is random, or too expensive to repeat."""
    return any(
        str(call_.this).lower() in NONDETERMINISTIC or call_.meta.get(ONCE) for call_ in sql.find_all(exp.Anonymous)
    )


def suggest_function(name: str, known: Iterable[str]) -> str:
    """Returns the hint for a function that cannot be called: a similar name, and where to find the list.

    The hint never says that Spark lacks the function, because the list omits some that Spark has.
    """
    listed = "docs/language.md lists what can be called"
    # A lower similarity would suggest `repeat` for `reflect`; without comparing words, `if_missing` for `is_missing`.
    similar = did_you_mean(name, [word for word in known if _has_similar_words(name, word)], similarity=0.8)
    return f"{similar} {listed}" if similar else listed


def _has_similar_words(name: str, known: str) -> bool:
    """Whether each word of a name is similar to the word of another; names of other numbers of words may be."""
    words, others = name.lower()[:100].split("_"), known.split("_")
    return len(words) != len(others) or all(
        SequenceMatcher(None, word, other).ratio() > 0.6 for word, other in zip(words, others, strict=True)
    )
