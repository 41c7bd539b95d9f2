package tocsin;

import java.io.Serializable;
import java.util.HashMap;
import org.apache.spark.sql.api.java.UDF1;
import org.apache.spark.sql.expressions.UserDefinedFunction;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.DataTypes;

/**
 * Returns the index of a record among those that its task has seen, by the record's number. The first time it returns
 * the complement of the index, which is negative. A NULL is a new record each time.
 */
public final class FindRecord implements UDF1, Serializable {
  private transient HashMap indexes;  // Spark sends every task a copy of its own
  private transient int count;

  public UserDefinedFunction nondeterministic() {
    return functions.udf((UDF1) this, DataTypes.IntegerType).asNondeterministic();
  }

  public Object call(Object number) {
    if (indexes == null) indexes = new HashMap();
    Object known = number == null ? null : indexes.get(number);
    if (known != null) return known;
    if (number != null) indexes.put(number, Integer.valueOf(count));
    return Integer.valueOf(~count++);
  }
}
