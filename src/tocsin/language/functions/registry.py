"""Lists the Spark functions that queries may call. Any other Spark function is refused.

The list omits functions that read files, call Java or reveal facts about the machine (`reflect`, `input_file_name`,
`from_xml`, `current_user`, …), and those without meaning in this language (sketches, catalogs, collations).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

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


LISTED: Final = "docs/language.md lists what can be called"
_MISSPELT: Final = 0.8
"""The least similarity of a misspelt name and its suggestion. A lower value would suggest `repeat` for `reflect`."""


def suggest_function(name: str, known: Iterable[str]) -> str:
    """Returns the hint for a function that cannot be called: a similar name, and where to find the list.

    The hint never says that Spark lacks the function, because the list omits some that Spark has.
    """
    near = suggestion(name, known, _MISSPELT)
    return f"{near} {LISTED}" if near else LISTED


def suggestion(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Returns a hint with the known name that is most similar, or None."""
    near = difflib.get_close_matches(name.lower()[:100], sorted(known), 1, cutoff)
    return f"did you mean {near[0]}?" if near else None
