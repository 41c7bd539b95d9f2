"""The complete list of Spark plan nodes and expressions that the plan of a query may contain.

An expression is listed because a callable function, an operator or one of our templates becomes it when Spark analyses
the query. Everything else (Java by reflection, files, the machine, sketches, XPath, …) is refused. A new function of
the language may need a new name here: the tests say which.
"""

from __future__ import annotations

from typing import Final

_NODES: Final = "org.apache.spark.sql.catalyst.plans.logical."
_EXPRESSIONS: Final = "org.apache.spark.sql.catalyst.expressions."

NODES_BY_KIND: Final[dict[str, tuple[str, ...]]] = {
    kind: tuple(names.split())
    for kind, names in {
        "relations": "CTERelationDef CTERelationRef LocalRelation OneRowRelation Range SubqueryAlias WithCTE",
        "rows": (
            "Aggregate Distinct Expand Filter Generate GlobalLimit LocalLimit Offset Project Repartition ResolvedHint"
            " Sort Window"
        ),
        "several relations": "Except Intersect Join LateralJoin Union",
    }.items()
}
"""Nodes of a logical plan, outside our views."""

EXPRESSIONS_BY_KIND: Final[dict[str, tuple[str, ...]]] = {
    kind: tuple(names.split())
    for kind, names in {
        "names, constants and subqueries": (
            "Alias AttributeReference Cast CommonExpressionDef CommonExpressionRef Exists InSubquery"
            " KnownNullable LateralSubquery ListQuery Literal OuterReference ScalarSubquery SortOrder TypeOf"
            " TypedNullLiteral With"
        ),
        "conditions and errors": (
            "And AssertTrue Between CaseWhen Coalesce EqualNull EqualNullSafe EqualTo GreaterThan"
            " GreaterThanOrEqual Greatest If In IsNaN IsNotNull IsNull Least LessThan LessThanOrEqual NaNvl Not"
            " NullIf NullIfZero Nvl Nvl2 Or RaiseError TryEval ZeroIfNull"
        ),
        "numbers": (
            "Abs Acos Acosh Add Asin Asinh Atan Atan2 Atanh BRound Bin BitwiseAnd BitwiseCount BitwiseGet"
            " BitwiseNot BitwiseOr BitwiseXor Cbrt Ceil Conv Cos Cosh Cot Csc Divide EulerNumber Exp Expm1"
            " Factorial Floor Hypot IntegralDivide Log Log10 Log1p Log2 Logarithm MonotonicallyIncreasingID"
            " Multiply Murmur3Hash Pi Pmod Pow Rand Randn Remainder Rint Round RoundCeil RoundFloor Sec ShiftLeft"
            " ShiftRight ShiftRightUnsigned Signum Sin Sinh SparkPartitionID Sqrt Subtract Tan Tanh ToDegrees"
            " ToRadians TryAdd TryDivide TryMod TryMultiply TrySubtract UnaryMinus UnaryPositive Uniform"
            " WidthBucket XxHash64"
        ),
        "texts": (
            "Ascii Base64 BinaryPad BinaryPredicate BitLength Chr Concat ConcatWs Contains Crc32 Decode Elt"
            " Encode EndsWith FindInSet FormatNumber FormatString Hex ILike InitCap IsValidUTF8 Left Length"
            " Levenshtein Like Lower Luhncheck MakeValidUTF8 Mask Md5 OctetLength Overlay ParseUrl Quote RLike"
            " RandStr RegExpCount RegExpExtract RegExpExtractAll RegExpInStr RegExpReplace RegExpSubStr Reverse"
            " Right Sentences Sha1 Sha2 SoundEx SplitPart StartsWith StringDecode StringInstr StringLPad"
            " StringLocate StringRPad StringRepeat StringReplace StringSpace StringSplit StringTranslate"
            " StringTrim StringTrimBoth StringTrimLeft StringTrimRight Substring SubstringIndex ToBinary"
            " ToCharacter ToNumber TryParseUrl TryToBinary TryToNumber TryUrlDecode TryValidateUTF8 UnBase64 Unhex"
            " Upper UrlDecode UrlEncode Uuid ValidateUTF8"
        ),
        "moments and intervals": (
            "AddMonths ConvertTimezone CurrentDate CurrentTime CurrentTimeZone CurrentTimestamp DateAdd"
            " DateAddInterval DateAddYMInterval DateDiff DateFormatClass DateFromUnixDate DateSub DatetimeSub"
            " DayName DayOfMonth DayOfWeek DayOfYear DivideDTInterval DivideInterval DivideYMInterval Extract"
            " ExtractANSIIntervalDays ExtractANSIIntervalHours ExtractANSIIntervalMinutes"
            " ExtractANSIIntervalMonths ExtractANSIIntervalSeconds ExtractANSIIntervalYears ExtractIntervalDays"
            " ExtractIntervalHours ExtractIntervalMinutes ExtractIntervalMonths ExtractIntervalSeconds"
            " ExtractIntervalYears FromUTCTimestamp FromUnixTime GetTimestamp Hour LastDay LocalTimestamp"
            " MakeDTInterval MakeDate MakeInterval MakeTimestamp MakeTimestampFromDateTime MakeTimestampNTZ"
            " MakeYMInterval MicrosToTimestamp MillisToTimestamp Minute Month MonthName MonthsBetween"
            " MultiplyDTInterval MultiplyInterval MultiplyYMInterval NextDay Now ParseToDate ParseToTimestamp"
            " PreciseTimestampConversion Quarter Second SecondWithFraction SecondsToTimestamp SubtractDates"
            " SubtractTimestamps TimeBucket TimestampAddInterval TimestampAddYMInterval TimestampDiff"
            " ToUTCTimestamp ToUnixTimestamp TruncDate TruncTimestamp TryMakeInterval TryMakeTimestamp"
            " TryMakeTimestampFromDateTime UnixDate UnixMicros UnixMillis UnixSeconds UnixTimestamp WeekDay"
            " WeekOfYear Year YearOfWeek"
        ),
        "arrays, maps and structs": (
            "ArrayAggregate ArrayAppend ArrayCompact ArrayContains ArrayDistinct ArrayExcept ArrayExists"
            " ArrayFilter ArrayForAll ArrayInsert ArrayIntersect ArrayJoin ArrayMax ArrayMin ArrayPosition"
            " ArrayPrepend ArrayRemove ArrayRepeat ArraySize ArraySort ArrayTransform ArrayUnion ArraysOverlap"
            " ArraysZip CreateArray CreateMap CreateNamedStruct ElementAt Explode Flatten Get GetArrayItem"
            " GetArrayStructFields GetMapValue GetStructField Inline LambdaFunction MapConcat MapContainsKey"
            " MapEntries MapFilter MapFromArrays MapFromEntries MapKeys MapValues MapZipWith NamedLambdaVariable"
            " PosExplode Sequence Shuffle Size Slice SortArray Stack StringToMap TransformKeys TransformValues"
            " TryElementAt VectorCosineSimilarity VectorInnerProduct VectorL2Distance VectorNorm VectorNormalize"
            " ZipWith"
        ),
        "JSON, CSV and untyped values": (
            "CsvToStructs GetJsonObject JsonObjectKeys JsonToStructs JsonTuple LengthOfJsonArray SchemaOfCsv"
            " SchemaOfJson StructsToCsv StructsToJson StructsToXml variant.IsValidVariant variant.IsVariantNull"
            " variant.ParseJson variant.SchemaOfVariant variant.SchemaOfVariantAgg variant.ToVariantObject"
            " variant.VariantGet"
        ),
        "windows": (
            "CumeDist CurrentRow DenseRank Lag Lead NTile NthValue PercentRank Rank RowNumber"
            " SpecifiedWindowFrame UnboundedFollowing UnboundedPreceding WindowExpression WindowSpecDefinition"
        ),
        "aggregates": (
            "VectorAvg VectorSum aggregate.AggregateExpression aggregate.AnyValue aggregate.ApproxTopK"
            " aggregate.ApproximatePercentile aggregate.Average aggregate.BitAndAgg aggregate.BitOrAgg"
            " aggregate.BitXorAgg aggregate.BoolAnd aggregate.BoolOr aggregate.CollectList aggregate.CollectSet"
            " aggregate.Corr aggregate.Count aggregate.CountIf aggregate.CovPopulation aggregate.CovSample"
            " aggregate.First aggregate.HistogramNumeric aggregate.HyperLogLogPlusPlus aggregate.Kurtosis"
            " aggregate.Last aggregate.ListAgg aggregate.Max aggregate.MaxBy aggregate.MaxMinByK aggregate.Median"
            " aggregate.Min aggregate.MinBy aggregate.Mode aggregate.Percentile aggregate.PercentileCont"
            " aggregate.PercentileDisc aggregate.RegrAvgX aggregate.RegrAvgY aggregate.RegrCount"
            " aggregate.RegrIntercept aggregate.RegrR2 aggregate.RegrSXX aggregate.RegrSXY aggregate.RegrSYY"
            " aggregate.RegrSlope aggregate.Skewness aggregate.StddevPop aggregate.StddevSamp aggregate.Sum"
            " aggregate.VariancePop aggregate.VarianceSamp"
        ),
        "calls into this process's own functions": "PythonUDF ScalaUDF",
    }.items()
}
"""Expressions. `plan_check` also checks which functions of a session they call."""

NODES: Final = frozenset(_NODES + name for names in NODES_BY_KIND.values() for name in names)
EXPRESSIONS: Final = frozenset(_EXPRESSIONS + name for names in EXPRESSIONS_BY_KIND.values() for name in names)
