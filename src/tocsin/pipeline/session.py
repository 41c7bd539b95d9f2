"""Starts, stops and replaces the single Spark session of a process. Every Spark setting is here, with its reason.

Spark allows one session in a process, and a setting that comes after its start has no effect.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil  # type: ignore[import-untyped]

from tocsin.pipeline.class_archive import class_archive_options
from tocsin.pipeline.java import ensure_java
from tocsin.wire.errors import UnavailableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_START_TIMEOUT_S: Final = 120.0
_STOP_TIMEOUT_S: Final = 20.0
_MIB: Final = 1 << 20
# Another Spark installation on the machine must not lend us its jars, its settings or its running JVM.
_FOREIGN: Final = (
    "SPARK_HOME",
    "SPARK_CONF_DIR",
    "SPARK_LOCAL_DIRS",
    "SPARK_REMOTE",
    "SPARK_CONNECT_MODE_ENABLED",
    "PYSPARK_SUBMIT_ARGS",
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
    "PYSPARK_DRIVER_PYTHON",
)
# The first two print JSON to stderr for every failed query, the others a traceback for each connection to a killed JVM.
# The caller gets the error anyway.
_NOISY: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j.java_gateway", "py4j.clientserver")
_REFLECTIVE: Final = ("reflect", "java_method", "try_reflect")
# A failed statement is an answer, not a line on the terminal: Spark's log goes to a file of bounded size.
_LOG4J: Final = """\
status = off
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {folder}/spark.log
appender.file.filePattern = {folder}/spark.%i.log
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = SizeBasedTriggeringPolicy
appender.file.policies.size = 8MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
"""


def start(
    scratch: Path, *, master: str = "local[*]", driver_memory: str = "1g", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Starts Spark. It writes only below `scratch`, whose earlier Spark content is removed.

    `local[*]` means more slots than cores (see `slots`). `conf` overrides any setting below. The JVM ends a moment
    after this process, however the process ends. Raises UnavailableError with Spark's reason. PySpark forgets a
    session whose JVM was killed (`kill`) when the next session starts.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    from tocsin.pipeline.java_functions import register_java_functions

    if _is_running(SparkContext._active_spark_context):
        raise RuntimeError("this process already has a Spark session; there is one per process")
    scratch = scratch.resolve()
    _clear(scratch)
    for name in _FOREIGN:
        os.environ.pop(name, None)
    ensure_java()
    # The Python workers run the same Python, so they can import the same packages as this process.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # glibc gives every thread its own arena; with Spark's hundred threads that wastes memory.
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    for name in _NOISY:
        logging.getLogger(name).disabled = True

    spark_settings = settings(scratch, master=master, driver_memory=driver_memory, conf=conf or {})
    with SparkContext._lock:
        _forget_session()  # else the conf is made by the JVM of a session that PySpark itself has stopped
    spark_conf = SparkConf(loadDefaults=False).setAll(list(spark_settings.items()))
    stderr_path = scratch / "spark-stderr.log"
    with contextlib.suppress(FileNotFoundError):
        stderr_path.replace(scratch / "spark-stderr.previous.log")  # the output of the previous session
    with stderr_path.open("wb") as stderr, _limited_start():
        # Relative paths of Spark or Java (core dumps, hs_err files) are then below the scratch folder too.
        popen = {"stdout": stderr, "stderr": stderr, "cwd": scratch}
        try:
            gateway = launch_gateway(spark_conf, popen)
        except (PySparkException, OSError) as error:
            raise UnavailableError(f"Spark did not start: {_last_words(stderr_path) or error}") from error
    try:
        # Both steps under one lock: otherwise a thread that uses the old session could start its own session in
        # between.
        with SparkContext._lock:
            _forget_session()
            started = SparkSession(SparkContext(conf=spark_conf, gateway=gateway))
        _forget_functions(started)
        register_java_functions(started, scratch / "tmp")
    except Exception as error:
        reason = str(error)  # str() asks the JVM, so it comes before _end
        _end(gateway)
        with SparkContext._lock:
            _forget_session()
        raise UnavailableError(f"Spark did not start: {reason}") from error
    return started


def _is_running(context: Any) -> bool:
    return context is not None and context._gateway.proc.poll() is None


def _forget_session() -> None:
    """Removes PySpark's references to its session. The caller holds PySpark's lock."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None


@contextlib.contextmanager
def _limited_start() -> Iterator[None]:
    """Kills the processes started in the block if they take too long: PySpark would wait forever."""
    this_process = psutil.Process()
    before = set(this_process.children())

    def kill_new() -> None:
        for child in set(this_process.children()) - before:
            if "org.apache.spark.deploy.SparkSubmit" in " ".join(child.cmdline()):
                child.kill()

    timer = threading.Timer(_START_TIMEOUT_S, kill_new)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def jvm_process(spark: SparkSession) -> subprocess.Popen[bytes]:
    """The JVM process of the session."""
    gateway: Any = spark.sparkContext._gateway
    process: subprocess.Popen[bytes] = gateway.proc
    return process


def _forget_functions(spark: SparkSession) -> None:
    """Removes Spark's functions that call any Java method from the session: with them a query could end the JVM, or
    read and write everything that this process may.
    """
    jvm: Any = spark._jvm
    registry: Any = spark._jsparkSession.sessionState().functionRegistry()
    some = jvm.scala.Some
    for name in _REFLECTIVE:
        identifier = jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name, some("builtin"), some("system"))
        if not registry.dropFunction(identifier):
            raise RuntimeError(f"Spark's function {name} could not be taken away")


def stop(spark: SparkSession) -> None:
    """Stops Spark and waits until its JVM has ended, so that the same data can be opened again at once."""
    from pyspark import SparkContext

    gateway: Any = spark.sparkContext._gateway

    def stop_context() -> None:
        # The JVM may be dead already, which is the goal here.
        with contextlib.suppress(Exception):
            spark.stop()

    stopping = threading.Thread(target=stop_context, name="stopping Spark", daemon=True)
    stopping.start()
    stopping.join(_STOP_TIMEOUT_S)
    if stopping.is_alive():
        gateway.proc.kill()  # the JVM hangs, and a call to it would never return
    _end(gateway)
    with SparkContext._lock:
        _forget_session()


def add_fair_pool(spark: SparkSession, name: str) -> None:
    """Adds a scheduler pool whose jobs share its slots fairly. In Spark's own pools the first job gets all slots."""
    context: Any = spark.sparkContext
    scheduler = context._jvm.org.apache.spark.scheduler
    pool = scheduler.Pool(name, scheduler.SchedulingMode.FAIR(), 0, 1)
    context._jsc.sc().taskScheduler().rootPool().addSchedulable(pool)


def kill(spark: SparkSession) -> None:
    """Kills Spark's JVM, even if it hangs. Threads that wait for it get errors; a new `start` may follow."""
    from pyspark import SparkContext

    context: Any = spark.sparkContext
    gateway: Any = context._gateway
    gateway.proc.kill()
    gateway.proc.wait()
    # Otherwise PySpark would apply settings to the dead JVM.
    SparkContext._jvm = None
    _end(gateway)
    server = context._accumulatorServer
    if server is not None:
        with contextlib.suppress(Exception):
            server.shutdown()
            server.server_close()


class SparkSessions:
    """The successive Spark sessions of this process. Its methods block; one thread at a time calls them."""

    def __init__(
        self, start: Callable[[], SparkSession], on_process: Callable[[int], None] = lambda _pid: None
    ) -> None:
        """`on_process` is called with the JVM's process id of each session."""
        self._start = start
        self._on_process = on_process
        self._current: SparkSession | None = None

    def start(self) -> SparkSession:
        self._current = started = self._start()
        self._on_process(jvm_process(started).pid)
        return started

    def kill(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            kill(current)

    def stop(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            stop(current)


def slots(cores: int | None = None) -> int:
    """The number of tasks that run at once. It exceeds the number of cores, because tasks are not preempted: a long
    task on every core would stall short ones. It also exceeds what the scripts of one token use together (on two cores
    two scripts of two tasks each).
    """
    return max(6, 3 * (cores or os.cpu_count() or 1))


def settings(scratch: Path, *, master: str, driver_memory: str, conf: Mapping[str, str]) -> dict[str, str]:
    """All settings that Spark is started with: ours, overridden by the caller's (whose Java options are appended)."""
    cores = os.cpu_count() or 1
    their_java_options = conf.get("spark.driver.extraJavaOptions", "")
    local = {
        # Only this process connects to it.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # Driver and executor are the same JVM, so a lost heartbeat means nothing, and each costs idle CPU.
        "spark.executor.heartbeatInterval": "60s",
        "spark.network.timeout": "600s",
        # An OutOfMemoryError is the fault of one statement; by default it would end the JVM for all of them.
        "spark.executor.killOnFatalError.depth": "0",
        "spark.rpc.netty.dispatcher.numThreads": "2",
    }
    remote = {
        # A task that cannot be stopped keeps its slot until its executor ends. A local executor is this JVM: there the
        # cluster's watchdog counts such tasks.
        "spark.task.reaper.enabled": "true",
        "spark.task.reaper.killTimeout": "120s",
    }
    return {
        "spark.app.name": "tocsin",
        "spark.master": f"local[{slots(cores)}]" if master == "local[*]" else master,
        **(local if master.startswith("local") else remote),
        "spark.submit.deployMode": "client",
        "spark.driver.memory": driver_memory,
        # A result that would fill the JVM is refused with an error first. Spark holds a result four times on its way to
        # us. If there is no memory for that, the threads that carry it die silently: the query waits for ever, and its
        # result keeps its memory.
        "spark.driver.maxResultSize": f"{_mebibytes(driver_memory) // 8}m",
        # Nothing is written outside the scratch folder.
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
        "spark.sql.catalogImplementation": "in-memory",
        # No web UI, no progress bars, and little history of past jobs (Spark keeps it even without a UI).
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.retainedJobs": "20",
        "spark.ui.retainedStages": "20",
        "spark.ui.retainedTasks": "200",
        "spark.sql.ui.retainedExecutions": "10",
        # Spark renders the plan of every query as text; rendering a wide plan would cost more than running it.
        "spark.sql.maxPlanStringLength": "100000",
        # The parser caches every shape of query, about 7 KB each, forever unless it is limited.
        "spark.sql.parser.manageParserCaches": "true",
        "spark.sql.parser.parserDfaCacheFlushThreshold": str(_mebibytes(driver_memory) * 8),
        # A full collection from time to time gives unused memory back.
        "spark.cleaner.periodicGC.interval": "5min",
        # Jobs here are small: few tasks, and no re-planning between stages (212 ms a job instead of 1,222).
        "spark.sql.shuffle.partitions": str(max(2, cores)),
        "spark.default.parallelism": str(max(2, cores)),
        "spark.sql.adaptive.enabled": "false",
        # Statements share the slots rather than queue for them.
        "spark.scheduler.mode": "FAIR",
        # We name the files to read; listing thousands of them in a Spark job would cost more than reading them.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
        # Local files open quickly: without this, a thousand small files become dozens of tasks.
        "spark.sql.files.openCostInBytes": "65536",
        # A name in a query is never a path: queries read only the views that we made.
        "spark.sql.runSQLOnFiles": "false",
        # The language: texts and names as written, errors instead of silent NULLs, and one time zone.
        "spark.sql.variable.substitute": "false",
        "spark.sql.caseSensitive": "true",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        # Years before 1900 as delta-rs and pyarrow write and read them.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
        "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
        "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.pyspark.fallback.enabled": "false",
        # Debugging records the call site of each Python line that touches a column: a stack walk per expression.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # The workers find this package here even if it is not installed.
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[2]),
        **conf,
        "spark.driver.extraJavaOptions": f"{_java_options(scratch, their_java_options)} {their_java_options}".rstrip(),
    }


def _java_options(scratch: Path, theirs: str) -> str:
    options = [
        # A small heap that grows when needed and shrinks again. With less, a busy channel has a full collection of 130
        # ms every second.
        "-Xms64m",
        "-XX:MinHeapFreeRatio=40",
        "-XX:MaxHeapFreeRatio=70",
        # The analyser recurses deeply for deep expressions.
        "-Xss8m",
        # Java would write metrics to a file in the system's temporary folder every 50 ms, even while idle.
        "-XX:-UsePerfData",
        # Libraries unpack native code here.
        f"-Djava.io.tmpdir={scratch / 'tmp'}",
        f"-Dderby.system.home={scratch}",
        f"-Dlog4j2.configurationFile={(scratch / 'log4j2.properties').as_uri()}",
        "-Duser.timezone=UTC",
        "-Dfile.encoding=UTF-8",
        *class_archive_options(),
    ]
    # The leanest collector for a heap of this size, unless the caller names a collector: Java refuses two.
    if re.search(r"-XX:\+Use\w+GC\b", theirs) is None:
        options.append("-XX:+UseSerialGC")
    return " ".join(f'"{option}"' for option in options)


def _mebibytes(memory: str) -> int:
    """Parses Spark's notation for memory: a number with k, m, g or t; bare numbers are MiB."""
    match = re.fullmatch(r"(\d+)([kmgt]?)b?", memory.strip().lower())
    if match is None:
        raise UnavailableError(f"Spark's memory must be a number with k, m, g or t, such as 1g; got {memory!r}")
    return max(1, int(match[1]) * {"k": 1 << 10, "": _MIB, "m": _MIB, "g": 1 << 30, "t": 1 << 40}[match[2]] // _MIB)


def _clear(scratch: Path) -> None:
    for name in ("local", "tmp", "warehouse"):
        shutil.rmtree(scratch / name, ignore_errors=True)
        (scratch / name).mkdir(parents=True, exist_ok=True)
    (scratch / "log4j2.properties").write_text(_LOG4J.format(folder=scratch))


def _last_words(log_file: Path, limit_bytes: int = 2_000) -> str:
    return log_file.read_bytes()[-limit_bytes:].decode(errors="replace").strip()


def _end(gateway: Any) -> None:
    """Ends the JVM: first by closing the pipe that it waits on, then by force."""
    with contextlib.suppress(Exception):
        gateway.shutdown()
    process: subprocess.Popen[bytes] | None = gateway.proc
    if process is None:
        return
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
