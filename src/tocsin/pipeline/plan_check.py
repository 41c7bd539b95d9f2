"""The second check of every query: inspects the plan that Spark understood, before any of it runs.

The language never writes a person's text into Spark's SQL. If it ever did, the plan would show it: a query may read
only the views that this process made, and its plan may contain only the nodes and expressions that `plan_nodes` lists.
A class that is compiled in the JVM once per session walks the plan there, in one call.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession

from tocsin.pipeline.plan_nodes import EXPRESSIONS, NODES
from tocsin.wire.errors import StatementError

_SOURCE: Final = """
package tocsin;

import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Set;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.PlanExpression;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.expressions.ScalaUDF;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.View;
import org.apache.spark.sql.execution.QueryExecution;

public class PlanCheck {
  private final Set nodes;
  private final Set expressions;

  public PlanCheck(String nodes, String expressions) {
    this.nodes = new HashSet(Arrays.asList(nodes.split(" ")));
    this.expressions = new HashSet(Arrays.asList(expressions.split(" ")));
  }

  /** The name of what must not run, or null. */
  public String refused(QueryExecution query) {
    ArrayDeque todo = new ArrayDeque();
    todo.push(query.analyzed());
    while (!todo.isEmpty()) {
      Object node = todo.pop();
      String name = node.getClass().getName();
      // The class of an object of Scala's, such as CURRENT ROW.
      if (name.endsWith("$")) name = name.substring(0, name.length() - 1);
      if (node instanceof View) {
        View view = (View) node;
        // Only this process makes views, and what they read is its own choice.
        if (!view.isTempView() || !view.desc().identifier().table().startsWith("tocsin_")) return name;
      } else if (node instanceof LogicalPlan) {
        LogicalPlan plan = (LogicalPlan) node;
        if (!nodes.contains(name)) return name;
        push(todo, plan.children());
        push(todo, plan.expressions());
      } else if (node instanceof Expression) {
        if (!expressions.contains(name) || isForeignFunction(node)) return name;
        if (node instanceof PlanExpression) todo.push(((PlanExpression) node).plan());
        push(todo, ((Expression) node).children());
      } else {
        return name;
      }
    }
    return null;
  }

  /** A function of the session that has no name of ours. Only this process registers any: no query can. */
  private static boolean isForeignFunction(Object node) {
    if (node instanceof PythonUDF) return !((PythonUDF) node).name().startsWith("tocsin_python_");
    if (!(node instanceof ScalaUDF)) return false;
    scala.Option name = ((ScalaUDF) node).udfName();
    return name.isEmpty() || !((String) name.get()).startsWith("tocsin_");
  }

  private static void push(ArrayDeque todo, Object parts) {
    scala.collection.Iterator all = ((scala.collection.Iterable) parts).iterator();
    while (all.hasNext()) todo.push(all.next());
  }
}
"""

_compiled: WeakKeyDictionary[SparkSession, Any] = WeakKeyDictionary()
_lock = threading.Lock()


def analyse_query(spark: SparkSession, sql: str, arguments: Mapping[str, Any] | None = None) -> DataFrame:
    """Analyses the query without running it. Raises StatementError if its plan contains anything that is not allowed.

    Every statement of a person reaches Spark through this function; a channel's query does so once, when it is
    created.
    """
    if not sql.startswith(("SELECT ", "WITH ", "(")):
        # Spark runs a command as soon as it has parsed it.
        raise StatementError("this is no query", hint="a query begins with SELECT or WITH")
    frame = spark.sql(sql, dict(arguments) if arguments else None)
    check_plan(spark, frame)
    return frame


def analyse_query_once(
    spark: SparkSession, checked: set[str], text: str, sql: str, arguments: Mapping[str, Any]
) -> DataFrame:
    """Like `analyse_query`, for a `text` that differs from `sql` only in the names of views: the plan is checked only
    if the text is not in `checked`, and the text is then added.
    """
    if text in checked:
        return spark.sql(sql, dict(arguments))
    frame = analyse_query(spark, sql, arguments)
    checked.add(text)
    return frame


def check_plan(spark: SparkSession, frame: DataFrame) -> None:
    refused: str | None = _checker(spark).refused(_query_execution(frame))
    if refused is not None:
        raise StatementError(
            f"this would run {refused.rpartition('.')[2]}, which no statement may",
            hint="read datasets, and call the functions that the language lists",
        )


def _query_execution(frame: Any) -> Any:
    return frame._jdf.queryExecution()


def _checker(spark: SparkSession) -> Any:
    with _lock:
        checker = _compiled.get(spark)
        if checker is None:
            checker = _compiled[spark] = _compile(spark)
        return checker


def _compile(spark: SparkSession) -> Any:
    """Compiles the class with the compiler that Spark uses for generated code."""
    jvm: Any = spark._jvm
    gateway: Any = spark.sparkContext._gateway
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(_SOURCE)
    names = gateway.new_array(jvm.java.lang.Object, 2)
    names[0], names[1] = " ".join(NODES), " ".join(EXPRESSIONS)
    return compiler.getClassLoader().loadClass("tocsin.PlanCheck").getConstructors()[0].newInstance(names)
