package tocsin;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.regex.PatternSyntaxException;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.api.java.UDF2;
import org.apache.spark.sql.api.java.UDF3;
import org.apache.spark.sql.api.java.UDF4;

/** Ends the work of a thread whose task or job group is cancelled. */
public final class Cancellation {
  public static void check() {
    TaskContext task = TaskContext.get();
    if (task != null) task.killTaskIfInterrupted();
    else if (isCancelled()) throw new IllegalStateException("cancelled");
  }

  /** Whether this thread's work is cancelled. The optimizer evaluates rows of local relations without a task. */
  private static boolean isCancelled() {
    if (Thread.currentThread().isInterrupted()) return true;
    scala.Option active = org.apache.spark.SparkContext$.MODULE$.getActive();
    if (active.isEmpty()) return false;
    SparkContext spark = (SparkContext) active.get();
    String group = spark.getLocalProperty("spark.jobGroup.id");
    return group != null && spark.dagScheduler().cancelledJobGroups().contains(group);
  }
}

/** A text that counts how often a matcher reads one of its characters. */
final class CountedText implements CharSequence {
  private static final int MOST_STEPS = @STEPS@;
  private static final int LOOK_EACH = 4096;  // a power of two

  private final String text;
  private int steps;

  CountedText(String text) {
    this.text = text;
  }

  public char charAt(int index) {
    if ((++steps & (LOOK_EACH - 1)) == 0) look();
    return text.charAt(index);
  }

  private void look() {
    if (steps > MOST_STEPS) throw RegexFunction.tooManySteps();
    Cancellation.check();
  }

  public int length() {
    return text.length();
  }

  public CharSequence subSequence(int begin, int end) {
    return text.substring(begin, end);
  }

  public String toString() {
    return text;
  }
}

/**
 * Bounds the steps that a matcher may take without reading a character, which CountedText cannot count: a part that can
 * match the empty text in two ways doubles them. A part of an expression has `ways` to match the empty text; it needs
 * `steps` to try all of them at the end of a text, where there is no character to read, and `still` anywhere else;
 * `longest` is the longest text that it matches. All are upper bounds.
 */
final class UncountedSteps {
  private static final double MUCH = 1e15;
  private static final double MOST_AT_END = 1e5;
  private static final double MOST = 1e9;

  private final String regex;
  private int at;
  private final Part whole;

  UncountedSteps(String regex) {
    this.regex = withoutQuotes(regex);
    this.whole = alternatives();
  }

  boolean areTooMany(int length) {
    return whole.steps > MOST_AT_END || whole.still * (length + 1.0) > MOST;
  }

  private static final class Part {
    final double ways;
    final double steps;
    final double still;
    final double longest;

    Part(double ways, double steps, double still, double longest) {
      this.ways = Math.min(ways, MUCH);
      this.steps = Math.min(steps, MUCH);
      this.still = Math.min(still, MUCH);
      this.longest = Math.min(longest, MUCH);
    }
  }

  private static Part nothing() {
    return new Part(1, 0, 0, 0);
  }

  private static Part character() {
    return new Part(0, 1, 0, 2);
  }

  private static Part assertion() {
    return new Part(1, 1, 1, 0);
  }

  /** Expands \Q…\E to single characters, as Java does first. */
  private static String withoutQuotes(String regex) {
    if (regex.indexOf("\\Q") < 0) return regex;
    StringBuilder made = new StringBuilder();
    int i = 0;
    while (i < regex.length()) {
      if (regex.startsWith("\\Q", i)) {
        int end = regex.indexOf("\\E", i + 2);
        String quoted = regex.substring(i + 2, end < 0 ? regex.length() : end);
        for (int j = 0; j < quoted.length(); j++) {
          char c = quoted.charAt(j);
          boolean letter = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z';
          made.append(letter ? "" : "\\").append(c >= '0' && c <= '9' ? '.' : c);
        }
        i = end < 0 ? regex.length() : end + 2;
      } else {
        int width = regex.charAt(i) == '\\' && i + 1 < regex.length() ? 2 : 1;
        made.append(regex, i, i + width);
        i += width;
      }
    }
    return made.toString();
  }

  private char peek() {
    return at < regex.length() ? regex.charAt(at) : '\0';
  }

  private Part alternatives() {
    Part all = sequence();
    while (at < regex.length() && peek() == '|') {
      at++;
      Part other = sequence();
      all = new Part(all.ways + other.ways, all.steps + other.steps + 1, all.still + other.still + other.ways,
          Math.max(all.longest, other.longest));
    }
    return all;
  }

  private Part sequence() {
    Part all = nothing();
    while (at < regex.length() && peek() != '|' && peek() != ')') {
      Part next = repeated(atom());
      all = new Part(all.ways * next.ways, all.steps + all.ways * next.steps, all.still + all.ways * next.still,
          all.longest + next.longest);
    }
    return all;
  }

  private Part repeated(Part part) {
    while (at < regex.length()) {
      char c = peek();
      double least = c == '+' ? 1 : 0;
      double most = c == '?' ? 1 : MUCH;
      if (c == '{') {
        int end = regex.indexOf('}', at);
        String[] bounds = regex.substring(at + 1, end).split(",", -1);
        least = Double.parseDouble(bounds[0].trim());
        if (bounds.length == 1) most = least;
        else if (bounds[1].trim().length() > 0) most = Double.parseDouble(bounds[1].trim());
        at = end + 1;
      } else if (c == '?' || c == '*' || c == '+') {
        at++;
      } else {
        return part;
      }
      if (peek() == '?' || peek() == '+') at++;
      // A matcher repeats an empty match up to the minimum of the quantifier, and once more.
      double times = part.ways > 0 ? Math.max(1, least) : 1;
      double ways = part.ways > 0 ? part.ways + 1 : least == 0 ? 1 : 0;
      part = new Part(ways, part.steps * times + 1, part.still * times, part.longest * most);
    }
    return part;
  }

  private Part atom() {
    char c = peek();
    at++;
    if (c == '(') return group();
    if (c == '\\') return escaped();
    if (c == '^' || c == '$') return assertion();
    if (c == '[') skipClass();
    return character();
  }

  private Part group() {
    boolean once = false;
    boolean behind = false;
    if (peek() == '?') {
      at++;
      char kind = peek();
      at++;
      if (kind == '=' || kind == '!' || kind == '>') {
        once = true;
      } else if (kind == '<') {
        behind = once = peek() == '=' || peek() == '!';
        at = once ? at + 1 : regex.indexOf('>', at) + 1;
      } else if (kind != ':') {
        at--;
        while (peek() != ':' && peek() != ')') {
          if (peek() == 'x') throw RegexFunction.wrong("a regular expression cannot have the flag x", "leave it out");
          at++;
        }
        at++;
        if (regex.charAt(at - 1) == ')') return nothing();
      }
    }
    Part inner = alternatives();
    at++;  // the closing parenthesis
    double places = behind ? inner.longest + 1 : 1;
    return new Part(once ? 1 : inner.ways, inner.steps * places + 1, inner.still * places + 1, once ? 0 : inner.longest);
  }

  private Part escaped() {
    char c = peek();
    at++;
    if (c == 'b' || c == 'B' || c == 'A' || c == 'z' || c == 'Z' || c == 'G') {
      if (regex.startsWith("{g}", at)) at += 3;
      return assertion();
    }
    if (c >= '1' && c <= '9') {
      while (peek() >= '0' && peek() <= '9') at++;
      return new Part(1, 1, 1, MUCH);
    }
    if (c == 'k') {
      at = regex.indexOf('>', at) + 1;
      return new Part(1, 1, 1, MUCH);
    }
    if (c == 'c') at++;
    else if ((c == 'p' || c == 'P' || c == 'x' || c == 'N') && peek() == '{') at = regex.indexOf('}', at) + 1;
    return c == 'X' ? new Part(0, 1, 0, MUCH) : character();
  }

  private void skipClass() {
    if (peek() == '^') at++;
    boolean isEmpty = true;
    while (at < regex.length()) {
      char c = peek();
      at++;
      if (c == '\\') at += peek() == 'c' ? 2 : 1;
      else if (c == '[') skipClass();
      else if (c == ']' && !isEmpty) return;
      isEmpty = false;
    }
  }
}

/** A compiled regular expression, which is reused for the next value. */
final class CompiledRegex {
  final String text;
  final Pattern pattern;
  private final UncountedSteps uncounted;

  CompiledRegex(String text) {
    this.text = text;
    try {
      this.pattern = Pattern.compile(text);
      this.uncounted = new UncountedSteps(text);
    } catch (PatternSyntaxException error) {
      throw RegexFunction.wrong(
          "the regular expression " + RegexFunction.shown(text) + " is wrong: " + error.getDescription()
              + (error.getIndex() < 0 ? "" : " at character " + (error.getIndex() + 1)),
          "docs.oracle.com/javase has the syntax under java.util.regex.Pattern");
    } catch (StackOverflowError error) {
      throw RegexFunction.tooDeep();
    }
  }

  Matcher matcher(String value) {
    if (uncounted.areTooMany(value.length())) throw RegexFunction.tooManySteps();
    return pattern.matcher(new CountedText(value));
  }
}

abstract class RegexFunction implements Serializable {
  private transient CompiledRegex last;

  protected final Matcher matcher(String value, String regex) {
    CompiledRegex known = last;
    if (known == null || !known.text.equals(regex)) last = known = new CompiledRegex(regex);
    return known.matcher(value);
  }

  protected static boolean find(Matcher matcher) {
    try {
      return matcher.find();
    } catch (StackOverflowError error) {
      // Spark would end the executor for an Error.
      throw tooDeep();
    }
  }

  protected static String group(Matcher matcher, int index) {
    if (index < 0 || index > matcher.groupCount()) {
      throw wrong("the regular expression has no group " + index, "it has " + matcher.groupCount() + ", and 0 is all");
    }
    String found = matcher.group(index);
    return found == null ? "" : found;
  }

  static IllegalArgumentException tooManySteps() {
    return wrong("this regular expression takes more than @STEPS_SHOWN@ steps on one value",
        "avoid repetitions within repetitions, such as (a+)+, or match shorter texts");
  }

  static IllegalArgumentException tooDeep() {
    return wrong("this regular expression needs more memory than there is for one value",
        "repeat single characters or classes rather than groups, or match shorter texts");
  }

  static IllegalArgumentException wrong(String message, String hint) {
    return new IllegalArgumentException("tocsin regex: " + message + "\n" + hint);
  }

  static String shown(String text) {
    String line = text.replace('\n', ' ');
    return "'" + (line.length() > 100 ? line.substring(0, 100) + "…" : line) + "'";
  }
}

public final class RegexLike extends RegexFunction implements UDF2 {
  public Object call(Object text, Object regex) {
    if (text == null || regex == null) return null;
    return Boolean.valueOf(find(matcher((String) text, (String) regex)));
  }
}

public final class RegexExtract extends RegexFunction implements UDF3 {
  public Object call(Object text, Object regex, Object index) {
    if (text == null || regex == null || index == null) return null;
    Matcher matcher = matcher((String) text, (String) regex);
    return find(matcher) ? group(matcher, ((Integer) index).intValue()) : "";
  }
}

public final class RegexExtractAll extends RegexFunction implements UDF3 {
  public Object call(Object text, Object regex, Object index) {
    if (text == null || regex == null || index == null) return null;
    Matcher matcher = matcher((String) text, (String) regex);
    ArrayList found = new ArrayList();
    while (find(matcher)) found.add(group(matcher, ((Integer) index).intValue()));
    return found.toArray();
  }
}

public final class RegexPosition extends RegexFunction implements UDF3 {
  public Object call(Object text, Object regex, Object index) {
    if (text == null || regex == null || index == null) return null;
    Matcher matcher = matcher((String) text, (String) regex);
    return Integer.valueOf(find(matcher) ? matcher.start() + 1 : 0);
  }
}

public final class RegexReplace extends RegexFunction implements UDF4 {
  public Object call(Object text, Object regex, Object replacement, Object position) {
    if (text == null || regex == null || replacement == null || position == null) return null;
    String value = (String) text;
    int begin = ((Integer) position).intValue() - 1;
    if (begin < 0) throw wrong("the position of regexp_replace is " + (begin + 1), "positions begin with 1");
    if (begin > 0 && begin >= value.length()) return value;
    Matcher matcher = matcher(value, (String) regex);
    matcher.region(begin, value.length());
    StringBuffer made = new StringBuffer();
    while (find(matcher)) append(matcher, made, (String) replacement);
    matcher.appendTail(made);
    return made.toString();
  }

  private static void append(Matcher matcher, StringBuffer made, String replacement) {
    String problem;
    try {
      matcher.appendReplacement(made, replacement);
      return;
    } catch (IndexOutOfBoundsException error) {
      problem = error.getMessage();
    } catch (IllegalArgumentException error) {
      if (String.valueOf(error.getMessage()).startsWith("tocsin regex: ")) throw error;
      problem = error.getMessage();
    }
    throw wrong("the replacement " + shown(replacement) + " is wrong: " + problem,
        "write \\$ for $, and \\\\ for \\; $1 is the first group");
  }
}

public final class RegexSplit extends RegexFunction implements UDF3 {
  public Object call(Object text, Object regex, Object limit) {
    if (text == null || regex == null || limit == null) return null;
    String value = (String) text;
    int most = ((Integer) limit).intValue();
    String between = (String) regex;
    if (between.length() == 0 && value.length() > 0) return characters(value, most);
    // Most expressions here are a single literal character, for which Java needs no matcher.
    if (between.length() == 1 && ".$|()[{^?*+\\".indexOf(between) < 0) return value.split(between, most <= 0 ? -1 : most);
    Matcher matcher = matcher(value, between);
    ArrayList found = new ArrayList();
    int begin = 0;
    while ((most <= 0 || found.size() < most - 1) && find(matcher)) {
      // An empty match at the beginning separates nothing.
      if (matcher.end() == 0) continue;
      found.add(value.substring(begin, matcher.start()));
      begin = matcher.end();
    }
    found.add(value.substring(begin));
    return found.toArray();
  }

  /** Splits by an empty expression: into single characters, with the rest as the last part. */
  private static Object[] characters(String value, int most) {
    ArrayList found = new ArrayList();
    int begin = 0;
    while (begin < value.length()) {
      boolean isLast = most > 0 && found.size() == most - 1;
      int end = isLast ? value.length() : value.offsetByCodePoints(begin, 1);
      found.add(value.substring(begin, end));
      begin = end;
    }
    return found.toArray();
  }
}
