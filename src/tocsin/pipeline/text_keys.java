package tocsin;

import java.util.HashSet;
import java.util.LinkedHashSet;
import org.apache.spark.sql.api.java.UDF1;
import org.apache.spark.sql.api.java.UDF2;
import org.apache.spark.sql.api.java.UDF3;

/** Hashes of parts of texts. Equal parts have equal keys; different parts may have equal keys, too. */
final class TextKey {
  /** The lengths of parts that have keys. A longer part is rarer, but every length costs a text one more key per place. */
  static final int[] LENGTHS = {0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32};
  static final int LONGEST = 32;
  static final int KINDS = 32;
  static final int AT_BEGIN = 16;  // marks the kind of a key that counts only at the beginning of a text
  static final int WORD = 31;  // the kind of a whole word
  private static final long FACTOR = 0x9E3779B97F4A7C15L;

  static long start() {
    return 1;
  }

  static long add(long hash, int character) {
    return hash * FACTOR + character + 1;
  }

  /** The key of a part, from the hash of its characters and its kind: the index of its length, and where it counts. */
  static long of(long hash, int kind) {
    long mixed = (hash + kind) * 0xBF58476D1CE4E5B9L;
    mixed = (mixed ^ (mixed >>> 31)) * 0x94D049BB133111EBL;
    return ((mixed ^ (mixed >>> 29)) & ~(long) (KINDS - 1)) | kind;
  }

  /** The key of the longest beginning of a text that has one of the lengths. */
  static long ofBeginning(CharSequence text, int kind) {
    int index = LENGTHS.length - 1;
    while (LENGTHS[index] > text.length()) index--;
    long hash = start();
    for (int i = 0; i < LENGTHS[index]; i++) hash = add(hash, text.charAt(i));
    return of(hash, index | kind);
  }

  static long ofWord(String word) {
    long hash = start();
    for (int i = 0; i < word.length(); i++) hash = add(hash, word.charAt(i));
    return of(hash, WORD);
  }

  /** Stands for all keys of a kind. */
  static long ofKind(int kind) {
    return of(-1, kind);
  }

  static int firstBit(long key) {
    return (int) (key >>> @FILTER_SHIFT@);
  }

  static int secondBit(long key) {
    return (int) ((key * FACTOR) >>> @FILTER_SHIFT@);
  }
}

/** The keys that some parameter has: a Bloom filter. */
final class KeyFilter {
  private final byte[] bits;

  KeyFilter(Object bits) {
    this.bits = (byte[]) bits;
  }

  boolean has(long key) {
    return isSet(TextKey.firstBit(key)) && isSet(TextKey.secondBit(key));
  }

  boolean hasKind(int kind) {
    return bits.length > 0 && has(TextKey.ofKind(kind));
  }

  private boolean isSet(int place) {
    return (bits[place >> 3] & 1 << (place & 7)) != 0;
  }
}

/** The bits that keys set in a filter: two of each key, and two of its kind. */
public final class KeyBits implements UDF1 {
  public Object call(Object keys) {
    if (keys == null) return null;
    LinkedHashSet bits = new LinkedHashSet();
    scala.collection.Iterator all = ((scala.collection.Iterable) keys).iterator();
    while (all.hasNext()) {
      Object key = all.next();
      if (key == null) continue;
      long number = ((Long) key).longValue();
      add(bits, number);
      add(bits, TextKey.ofKind((int) (number & TextKey.KINDS - 1)));
    }
    return bits.toArray();
  }

  private static void add(LinkedHashSet bits, long key) {
    bits.add(Long.valueOf(TextKey.firstBit(key)));
    bits.add(Long.valueOf(TextKey.secondBit(key)));
  }
}

/** The key of a keyword that a text is to contain: that of its first characters. */
public final class KeywordKey implements UDF1 {
  public Object call(Object word) {
    return word == null ? null : Long.valueOf(TextKey.ofBeginning((String) word, 0));
  }
}

/** The key of a pattern of LIKE: of its beginning, or of its longest part without wildcards if that is longer. */
public final class PatternKey implements UDF2 {
  public Object call(Object like, Object escape) {
    if (like == null) return null;
    String pattern = (String) like;
    char escaped = ((String) escape).charAt(0);
    StringBuilder part = new StringBuilder();
    String beginning = null;
    String longest = "";
    for (int i = 0; i <= pattern.length(); i++) {
      char letter = i < pattern.length() ? pattern.charAt(i) : '%';
      if (letter == escaped && i < pattern.length() - 1) {
        part.append(pattern.charAt(++i));
      } else if (letter == '%' || letter == '_') {
        if (beginning == null) beginning = part.toString();
        if (part.length() > longest.length()) longest = part.toString();
        part.setLength(0);
      } else {
        part.append(letter);
      }
    }
    boolean begins = beginning.length() > 0 && Math.min(longest.length(), TextKey.LONGEST) <= beginning.length();
    return Long.valueOf(begins ? TextKey.ofBeginning(beginning, TextKey.AT_BEGIN) : TextKey.ofBeginning(longest, 0));
  }
}

/** The keys of all parts of a text, as far as the filter has them. */
public final class PartKeys implements UDF2 {
  private static final int LOOK_EACH = 1 << 14;  // a power of two

  public Object call(Object value, Object bits) {
    if (value == null) return null;
    String text = (String) value;
    KeyFilter filter = new KeyFilter(bits);
    LinkedHashSet keys = new LinkedHashSet();
    add(text, 0, filter, TextKey.AT_BEGIN, lengths(filter, TextKey.AT_BEGIN), keys);
    int[] lengths = lengths(filter, 0);
    for (int begin = 0; lengths.length > 0 && begin <= text.length(); begin++) {
      if ((begin & LOOK_EACH - 1) == LOOK_EACH - 1) Cancellation.check();
      add(text, begin, filter, 0, lengths, keys);
    }
    return keys.toArray();
  }

  /** The indexes of the lengths that keys of this kind have. */
  private static int[] lengths(KeyFilter filter, int kind) {
    int[] found = new int[TextKey.LENGTHS.length];
    int count = 0;
    for (int i = 0; i < found.length; i++) if (filter.hasKind(i | kind)) found[count++] = i;
    return java.util.Arrays.copyOf(found, count);
  }

  private static void add(String text, int begin, KeyFilter filter, int kind, int[] lengths, LinkedHashSet keys) {
    long hash = TextKey.start();
    int at = begin;
    for (int i = 0; i < lengths.length; i++) {
      if (begin > 0 && lengths[i] == 0) continue;  // the empty part counts once
      int end = begin + TextKey.LENGTHS[lengths[i]];
      if (end > text.length()) return;
      while (at < end) hash = TextKey.add(hash, text.charAt(at++));
      long key = TextKey.of(hash, lengths[i] | kind);
      if (filter.has(key)) keys.add(Long.valueOf(key));
    }
  }
}

/** The words of a text: its runs of letters and digits, in lower case. */
final class Words {
  private final String text;
  private int at;

  Words(String text) {
    this.text = text;
  }

  /** The next word, or null. */
  String next() {
    StringBuilder word = new StringBuilder();
    while (at < text.length()) {
      int letter = text.codePointAt(at);
      at += Character.charCount(letter);
      if (Character.isLetterOrDigit(letter) || Character.getType(letter) == Character.OTHER_NUMBER) {
        word.appendCodePoint(Character.toLowerCase(letter));
      } else if (word.length() > 0) {
        break;
      }
    }
    return word.length() > 0 ? word.toString() : null;
  }

  /** The words of all texts of an array, each once. */
  static LinkedHashSet of(Object texts) {
    LinkedHashSet words = new LinkedHashSet();
    scala.collection.Iterator all = ((scala.collection.Iterable) texts).iterator();
    while (all.hasNext()) {
      Object text = all.next();
      if (text == null) continue;
      Words found = new Words((String) text);
      for (String word = found.next(); word != null; word = found.next()) words.add(word);
    }
    return words;
  }
}

/** Whether a text has all of the words, or any. */
public final class HasWords implements UDF3 {
  public Object call(Object text, Object texts, Object any) {
    if (text == null || texts == null) return null;
    LinkedHashSet wanted = Words.of(texts);
    if (wanted.isEmpty()) return Boolean.FALSE;
    Words words = new Words((String) text);
    for (String word = words.next(); word != null; word = words.next()) {
      if (wanted.remove(word) && (((Boolean) any).booleanValue() || wanted.isEmpty())) return Boolean.TRUE;
    }
    return Boolean.FALSE;
  }
}

/** The keys of words that a text is to have: of each where any will do, otherwise of the longest. */
public final class WordKeys implements UDF2 {
  public Object call(Object texts, Object any) {
    if (texts == null) return null;
    LinkedHashSet keys = new LinkedHashSet();
    String longest = null;
    for (java.util.Iterator all = Words.of(texts).iterator(); all.hasNext();) {
      String word = (String) all.next();
      if (longest == null || word.length() > longest.length()) longest = word;
      keys.add(Long.valueOf(TextKey.ofWord(word)));
    }
    if (((Boolean) any).booleanValue() || longest == null) return keys.toArray();
    return new Object[] {Long.valueOf(TextKey.ofWord(longest))};
  }
}

/** The keys of a text's words, as far as the filter has them. */
public final class TextWordKeys implements UDF2 {
  public Object call(Object text, Object bits) {
    if (text == null) return null;
    KeyFilter filter = new KeyFilter(bits);
    LinkedHashSet keys = new LinkedHashSet();
    if (!filter.hasKind(TextKey.WORD)) return keys.toArray();
    Words words = new Words((String) text);
    for (String word = words.next(); word != null; word = words.next()) {
      long key = TextKey.ofWord(word);
      if (filter.has(key)) keys.add(Long.valueOf(key));
    }
    return keys.toArray();
  }
}

/** The key of the first word of a text that is one of these words, or null. */
public final class FirstWordKey implements UDF2 {
  public Object call(Object text, Object texts) {
    if (text == null || texts == null) return null;
    HashSet wanted = Words.of(texts);
    Words words = new Words((String) text);
    for (String word = words.next(); word != null; word = words.next()) {
      if (wanted.contains(word)) return Long.valueOf(TextKey.ofWord(word));
    }
    return null;
  }
}
