package tocsin;

import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadInfo;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.Properties;
import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.TaskSchedulerImpl;
import org.apache.spark.scheduler.TaskSetManager;

/** Describes the tasks that run in this JVM and its heap, in one call. */
public final class RunningTasks {
  static final String THREAD = "Executor task launch worker";

  /**
   * The first line has the bytes of the heap in use and at most, and the milliseconds spent in collections. Each other
   * line is a task: whether its job is over, the bytes that its thread has allocated, its job group and its caller.
   */
  public static String describe(SparkContext context) {
    Map running = ((TaskSchedulerImpl) context.taskScheduler()).taskIdToTaskSetManager();
    Map allocated = running.isEmpty() ? new HashMap() : allocatedBytes();
    Runtime machine = Runtime.getRuntime();
    StringBuilder lines = new StringBuilder();
    lines.append(machine.totalMemory() - machine.freeMemory()).append('\t').append(machine.maxMemory());
    lines.append('\t').append(collectionMillis());
    for (Iterator entries = running.entrySet().iterator(); entries.hasNext();) {
      Map.Entry entry = (Map.Entry) entries.next();
      TaskSetManager manager = (TaskSetManager) entry.getValue();
      Properties properties = manager.taskSet().properties();
      Object bytes = allocated.get(entry.getKey().toString());
      lines.append('\n').append(manager.isZombie() ? '1' : '0').append('\t').append(bytes == null ? "0" : bytes);
      lines.append('\t').append(property(properties, "spark.jobGroup.id"));
      lines.append('\t').append(property(properties, "@ASKER@"));
    }
    return lines.toString();
  }

  static String property(Properties properties, String name) {
    String value = properties == null ? null : properties.getProperty(name);
    return value == null ? "" : value.replace('\t', ' ').replace('\n', ' ');
  }

  static long collectionMillis() {
    long total = 0;
    for (Iterator beans = ManagementFactory.getGarbageCollectorMXBeans().iterator(); beans.hasNext();) {
      total += Math.max(0, ((GarbageCollectorMXBean) beans.next()).getCollectionTime());
    }
    return total;
  }

  /** The bytes that each thread of a task has allocated since the task began, by the number of the task. */
  static Map allocatedBytes() {
    Map bytes = new HashMap();
    com.sun.management.ThreadMXBean threads = (com.sun.management.ThreadMXBean) ManagementFactory.getThreadMXBean();
    long[] ids = threads.getAllThreadIds();
    ThreadInfo[] infos = threads.getThreadInfo(ids);
    for (int place = 0; place < ids.length; place++) {
      String name = infos[place] == null ? "" : infos[place].getThreadName();
      int number = name.lastIndexOf("(TID ");
      if (name.startsWith(THREAD) && number > 0) {
        bytes.put(name.substring(number + 5, name.length() - 1), Long.toString(threads.getThreadAllocatedBytes(ids[place])));
      }
    }
    return bytes;
  }
}
