package tocsin;

import java.time.Duration;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.Period;
import java.time.ZoneOffset;
import java.util.Date;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.api.java.UDF1;
import org.apache.spark.sql.api.java.UDF2;
import org.apache.spark.sql.api.java.UDF3;
import org.apache.spark.unsafe.types.CalendarInterval;

/** The limits of values, and their errors. */
final class ValueLimit {
  static final int LETTERS = @LETTERS@;
  static final int ITEMS = @ITEMS@;
  static final long STEPS = @STEPS@L;

  static IllegalArgumentException tooLong(Object name) {
    return wrong(name + " makes texts of at most @LETTERS_SHOWN@ characters", "make a shorter one");
  }

  static IllegalArgumentException tooMany(Object name) {
    return wrong(name + " makes arrays of at most @ITEMS_SHOWN@ items", "make a shorter one, or rows with range(…) in FROM");
  }

  static IllegalArgumentException wrong(String message, String hint) {
    return new IllegalArgumentException("tocsin value: " + message + "\n" + hint);
  }
}

public final class BoundedRepeat implements UDF2 {
  public Object call(Object text, Object count) {
    if (text == null || count == null) return null;
    String value = (String) text;
    int times = Math.max(0, ((Integer) count).intValue());
    if ((long) value.length() * times > ValueLimit.LETTERS) throw ValueLimit.tooLong("repeat");
    return value.repeat(times);
  }
}

/** Passes on a number of characters unless it is too large. */
public final class BoundedLetters implements UDF2 {
  public Object call(Object count, Object name) {
    if (count != null && ((Integer) count).intValue() > ValueLimit.LETTERS) throw ValueLimit.tooLong(name);
    return count;
  }
}

/** Passes on a number of items unless it is too large; a negative one counts from the end. */
public final class BoundedItems implements UDF2 {
  public Object call(Object count, Object name) {
    if (count != null && Math.abs(((Integer) count).longValue()) > ValueLimit.ITEMS) throw ValueLimit.tooMany(name);
    return count;
  }
}

/** Passes on a format unless the widths of its specifiers are too large. */
public final class BoundedFormat implements UDF2 {
  private static final Pattern PLACES = Pattern.compile("%(?:[0-9]+\\$)?[-#+ 0,(<]*([0-9]*)(?:\\.([0-9]+))?");

  public Object call(Object form, Object name) {
    if (form == null) return null;
    Matcher matcher = PLACES.matcher((String) form);
    long places = 0;
    while (matcher.find()) places += number(matcher.group(1)) + number(matcher.group(2));
    if (places > ValueLimit.LETTERS) throw ValueLimit.tooLong(name);
    return form;
  }

  private static long number(String digits) {
    if (digits == null || digits.length() == 0) return 0;
    return digits.length() > 9 ? Integer.MAX_VALUE : Long.parseLong(digits);
  }
}

/** Fails if a sequence would have too many items. Spark itself refuses steps of no length. */
public final class SequenceFits implements UDF3 {
  private static final double DAY_S = 86400;
  private static final double MONTH_S = 28 * DAY_S;  // the shortest

  public Object call(Object first, Object last, Object step) {
    if (first == null || last == null || step == null) return Boolean.TRUE;
    double each = Math.abs(length(step, first));
    if (each > 0 && Math.abs(place(last) - place(first)) / each >= ValueLimit.ITEMS) throw ValueLimit.tooMany("sequence");
    return Boolean.TRUE;
  }

  private static double place(Object value) {
    if (value instanceof Number) return ((Number) value).doubleValue();
    if (value instanceof Date) return ((Date) value).getTime() / 1e3;
    if (value instanceof LocalDate) return ((LocalDate) value).toEpochDay() * DAY_S;
    if (value instanceof Instant) return ((Instant) value).getEpochSecond();
    if (value instanceof LocalDateTime) return ((LocalDateTime) value).toEpochSecond(ZoneOffset.UTC);
    throw ValueLimit.wrong("sequence takes numbers, dates or datetimes", "cast the bounds to one of them");
  }

  private static double length(Object step, Object first) {
    if (step instanceof Number) {
      double given = ((Number) step).doubleValue();
      // 0 stands for the default step.
      return given == 0 ? (first instanceof Number ? 1.0 : DAY_S) : given;
    }
    if (step instanceof Duration) return ((Duration) step).toNanos() / 1e9;
    if (step instanceof Period) return ((Period) step).toTotalMonths() * MONTH_S;
    if (step instanceof CalendarInterval) {
      CalendarInterval interval = (CalendarInterval) step;
      return interval.months * MONTH_S + interval.days * DAY_S + interval.microseconds / 1e6;
    }
    throw ValueLimit.wrong("sequence takes a number or an interval as its step", "such as INTERVAL 1 DAY");
  }
}

/** The distance of two texts if it is within the limit, else -1. */
public final class BoundedLevenshtein implements UDF3 {
  private static final int FAR = Integer.MAX_VALUE / 2;
  private static final int LOOK_EACH = 1 << 16;

  public Object call(Object left, Object right, Object limit) {
    if (left == null || right == null || limit == null) return null;
    int most = ((Integer) limit).intValue();
    int[] a = ((String) left).codePoints().toArray();
    int[] b = ((String) right).codePoints().toArray();
    if (Math.abs(a.length - b.length) > most) return Integer.valueOf(-1);
    // A path within the limit stays within a band around the diagonal.
    long width = Math.min((long) b.length, 2L * most + 1);
    if (a.length * width > ValueLimit.STEPS) {
      throw ValueLimit.wrong("levenshtein takes more than @STEPS_SHOWN@ steps on these texts, one for each pair of characters",
          "compare shorter texts, or give the largest distance that matters as a third argument");
    }
    int found = distance(a, b, most);
    return Integer.valueOf(found <= most ? found : -1);
  }

  private static int distance(int[] a, int[] b, int most) {
    int[] row = new int[b.length + 1];
    for (int j = 0; j <= b.length; j++) row[j] = j <= most ? j : FAR;
    int steps = 0;
    for (int i = 1; i <= a.length; i++) {
      int begin = (int) Math.max(1L, (long) i - most);
      int end = (int) Math.min((long) b.length, (long) i + most);
      int diagonal = row[begin - 1];
      row[begin - 1] = begin == 1 ? i : FAR;
      for (int j = begin; j <= end; j++) {
        int above = row[j];
        int changed = a[i - 1] == b[j - 1] ? diagonal : diagonal + 1;
        row[j] = Math.min(changed, Math.min(above, row[j - 1]) + 1);
        diagonal = above;
      }
      steps += end - begin + 1;
      if (steps > LOOK_EACH) {
        steps = 0;
        Cancellation.check();
      }
    }
    return row[b.length];
  }
}

/** Is true for every row, and ends a task that was killed: Spark's range, read row by row, does not look. */
public final class StoppableRow implements UDF1 {
  private int rows;

  public Object call(Object row) {
    if ((++rows & 1023) == 0) {
      TaskContext task = TaskContext.get();
      if (task != null) task.killTaskIfInterrupted();
    }
    return Boolean.TRUE;
  }
}
