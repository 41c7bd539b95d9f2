"""Starts, stops and replaces the one Spark session of a process. Every setting of Spark lives here, with its reason."""

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

from tocsin.pipeline.java import ensure_java
from tocsin.wire.errors import UnavailableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_START_TIMEOUT_S: Final = 120.0
_STOP_TIMEOUT_S: Final = 20.0
_MIB: Final = 1 << 20
# Another Spark installed on the machine must not lend us its jars, its settings or its running JVM.
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
# What Python's side of Spark prints as JSON on stderr for every failed query; the error itself reaches the asker.
_NOISY: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_REFLECTIVE: Final = ("reflect", "java_method", "try_reflect")
# A statement that fails is an answer, not a line on the terminal: Spark's own words go to a file of bounded size.
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
    scratch: Path,
    *,
    master: str = "local[*]",
    driver_memory: str = "1g",
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Starts Spark with everything it writes under `scratch`, whose earlier content of Spark's is dropped.

    `local[*]` means more slots than cores (see `slots`). `conf` overrides any setting below. The JVM ends by itself
    when this process ends, however that happens, but a moment later. Raises UnavailableError with Spark's reason.
    A session whose JVM was killed (`kill`) is forgotten when the next one is there.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    from tocsin.pipeline.regular_expressions import register_regex_functions

    if _is_running(SparkContext._active_spark_context):
        raise RuntimeError("this process already has a Spark session; there is one per process")
    scratch = scratch.resolve()
    _clear(scratch)
    for name in _FOREIGN:
        os.environ.pop(name, None)
    ensure_java()
    # The workers import what this process has: they are of the same Python.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # glibc gives every thread an arena of its own; with Spark's hundred threads that is memory nobody uses.
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    for name in _NOISY:
        logging.getLogger(name).disabled = True

    chosen = settings(scratch, master=master, driver_memory=driver_memory, conf=conf or {})
    spark_conf = SparkConf(loadDefaults=False).setAll(list(chosen.items()))
    said = scratch / "spark-stderr.log"
    with contextlib.suppress(FileNotFoundError):
        said.replace(scratch / "spark-stderr.previous.log")  # the last words of the one before
    with said.open("wb") as words, _limited_start():
        # Relative paths that Spark or Java think up (core dumps, hs_err files) are relative to the scratch folder too.
        popen = {"stdout": words, "stderr": words, "cwd": scratch}
        try:
            gateway = launch_gateway(spark_conf, popen)
        except (PySparkException, OSError) as error:
            raise UnavailableError(f"Spark did not start: {_last_words(said) or error}") from error
    try:
        # Under one lock: a thread that still works with the session before would start one of its own in between.
        with SparkContext._lock:
            _forget_session()
            started = SparkSession(SparkContext(conf=spark_conf, gateway=gateway))
        _forget_functions(started)
        register_regex_functions(started, scratch / "tmp")
    except Exception as error:
        said_of_it = str(error)  # which asks the JVM
        _end(gateway)
        with SparkContext._lock:
            _forget_session()
        raise UnavailableError(f"Spark did not start: {said_of_it}") from error
    return started


def _is_running(context: Any) -> bool:
    return context is not None and context._gateway.proc.poll() is None


def _forget_session() -> None:
    """What PySpark remembers of the session that it had. The caller has its lock."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None


@contextlib.contextmanager
def _limited_start() -> Iterator[None]:
    """Kills the processes that are started within if that takes too long: PySpark would wait for ever."""
    this = psutil.Process()
    before = set(this.children())

    def kill_new() -> None:
        for child in set(this.children()) - before:
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
    """The process in which Spark works for this one."""
    gateway: Any = spark.sparkContext._gateway
    process: subprocess.Popen[bytes] = gateway.proc
    return process


def _forget_functions(spark: SparkSession) -> None:
    """Takes from this session the functions that call any method of any Java class: with them a query could end the
    JVM, or read and write whatever this process may."""
    jvm: Any = spark._jvm
    registry: Any = spark._jsparkSession.sessionState().functionRegistry()
    some = jvm.scala.Some
    for name in _REFLECTIVE:
        identifier = jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name, some("builtin"), some("system"))
        if not registry.dropFunction(identifier):
            raise RuntimeError(f"Spark's function {name} could not be taken away")


def stop(spark: SparkSession) -> None:
    """Stops Spark and waits until its JVM is gone, so that the same data can be opened again at once."""
    from pyspark import SparkContext

    gateway: Any = spark.sparkContext._gateway

    def stop_context() -> None:
        # The JVM may already be dead, which is what is wanted here.
        with contextlib.suppress(Exception):
            spark.stop()

    stopping = threading.Thread(target=stop_context, name="stopping Spark", daemon=True)
    stopping.start()
    stopping.join(_STOP_TIMEOUT_S)
    if stopping.is_alive():
        gateway.proc.kill()  # it hangs: whoever asks it something waits for ever
    _end(gateway)
    with SparkContext._lock:
        _forget_session()


def add_fair_pool(spark: SparkSession, name: str) -> None:
    """Make a pool for the scheduler whose jobs share fairly what it gets. In those that Spark makes by itself the first
    job has all of it."""
    context: Any = spark.sparkContext
    scheduler = context._jvm.org.apache.spark.scheduler
    pool = scheduler.Pool(name, scheduler.SchedulingMode.FAIR(), 0, 1)
    context._jsc.sc().taskScheduler().rootPool().addSchedulable(pool)


def kill(spark: SparkSession) -> None:
    """Kills Spark's JVM, also one that hangs. Those who wait for its answers get errors; the next `start` follows."""
    from pyspark import SparkContext

    context: Any = spark.sparkContext
    gateway: Any = context._gateway
    gateway.proc.kill()
    gateway.proc.wait()
    # PySpark would make its settings in the JVM that it knows.
    SparkContext._jvm = None
    _end(gateway)
    server = context._accumulatorServer
    if server is not None:
        with contextlib.suppress(Exception):
            server.shutdown()
            server.server_close()


class SparkSessions:
    """Spark's sessions in this process, one after the other. Its methods block; one thread at a time calls them."""

    def __init__(
        self, start: Callable[[], SparkSession], on_process: Callable[[int], None] = lambda _pid: None
    ) -> None:
        """`on_process` is told the JVM's process id of each session."""
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
    """Tasks at once. More than cores: tasks are not preempted, and a long one on every core would stall short ones.
    Also more than the scripts of one token take together, on two cores two scripts of two tasks each."""
    return max(6, 3 * (cores or os.cpu_count() or 1))


def settings(scratch: Path, *, master: str, driver_memory: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Every setting that Spark is started with: ours, and over them the caller's (whose Java options are added)."""
    cores = os.cpu_count() or 1
    their_java_options = conf.get("spark.driver.extraJavaOptions", "")
    local = {
        # Nobody but this process has business with it.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # The JVM talks to itself, so a lost heartbeat means nothing, and each costs idle CPU.
        "spark.executor.heartbeatInterval": "60s",
        "spark.network.timeout": "600s",
        # An OutOfMemoryError is the fault of one statement; by default it would end the JVM for all of them.
        "spark.executor.killOnFatalError.depth": "0",
        "spark.rpc.netty.dispatcher.numThreads": "2",
    }
    remote = {
        # A task that cannot be stopped keeps its slot until its executor goes. A local one is this JVM: there the
        # cluster's watchdog counts them.
        "spark.task.reaper.enabled": "true",
        "spark.task.reaper.killTimeout": "120s",
    }
    return {
        "spark.app.name": "tocsin",
        "spark.master": f"local[{slots(cores)}]" if master == "local[*]" else master,
        **(local if master.startswith("local") else remote),
        "spark.submit.deployMode": "client",
        "spark.driver.memory": driver_memory,
        # A result that would fill the JVM is refused with an error before it does.
        "spark.driver.maxResultSize": f"{_mebibytes(driver_memory) // 2}m",
        # Nothing is written outside the scratch folder.
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
        "spark.sql.catalogImplementation": "in-memory",
        # No pages, no progress bars, and little memory of past jobs (kept although there are no pages).
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.retainedJobs": "20",
        "spark.ui.retainedStages": "20",
        "spark.ui.retainedTasks": "200",
        "spark.sql.ui.retainedExecutions": "10",
        # Plans are turned into text for those pages at every query; a wide one would cost more than running it.
        "spark.sql.maxPlanStringLength": "100000",
        # The parser remembers every shape of query that it met, some 7 KB each, for ever unless told otherwise.
        "spark.sql.parser.manageParserCaches": "true",
        "spark.sql.parser.parserDfaCacheFlushThreshold": str(_mebibytes(driver_memory) * 8),
        # A full collection now and then gives unused memory back.
        "spark.cleaner.periodicGC.interval": "5min",
        # Jobs here are small: few tasks, and no re-planning between stages (212 ms a job instead of 1,222).
        "spark.sql.shuffle.partitions": str(max(2, cores)),
        "spark.default.parallelism": str(max(2, cores)),
        "spark.sql.adaptive.enabled": "false",
        # Statements share the slots rather than queue for them.
        "spark.scheduler.mode": "FAIR",
        # We name the files to read; listing thousands of them by a Spark job of its own would cost more than reading.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
        # Local files open quickly: without this, a thousand small ones become dozens of tasks.
        "spark.sql.files.openCostInBytes": "65536",
        # No name in a query is a path: what it reads are the views that we made.
        "spark.sql.runSQLOnFiles": "false",
        # The language: texts and names as written, errors instead of silent NULLs, and one time zone.
        "spark.sql.variable.substitute": "false",
        "spark.sql.caseSensitive": "true",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        # Years before 1900 as delta-rs and pyarrow write and read them.
        "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
        "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
        "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.pyspark.fallback.enabled": "false",
        # Keeps the call site of each Python line that touches a column: a stack walk per expression.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # Where the workers find this package, also when it was not installed.
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[2]),
        **conf,
        "spark.driver.extraJavaOptions": f"{_java_options(scratch, their_java_options)} {their_java_options}".rstrip(),
    }


def _java_options(scratch: Path, theirs: str) -> str:
    options = [
        # A small heap that grows when needed and shrinks again. With less room than this, a busy channel has a full
        # collection every second, of 130 ms each.
        "-Xms64m",
        "-XX:MinHeapFreeRatio=40",
        "-XX:MaxHeapFreeRatio=70",
        # Deep expressions recurse deeply in the analyzer.
        "-Xss8m",
        # Metrics in a file under the system's temporary folder, written every 50 ms also while idle.
        "-XX:-UsePerfData",
        # Libraries unpack native code here.
        f"-Djava.io.tmpdir={scratch / 'tmp'}",
        f"-Dderby.system.home={scratch}",
        f"-Dlog4j2.configurationFile={(scratch / 'log4j2.properties').as_uri()}",
        "-Duser.timezone=UTC",
        "-Dfile.encoding=UTF-8",
    ]
    # The leanest collector for a heap of this size, unless the caller names one: Java refuses two.
    if re.search(r"-XX:\+Use\w+GC\b", theirs) is None:
        options.append("-XX:+UseSerialGC")
    return " ".join(f'"{option}"' for option in options)


def _mebibytes(memory: str) -> int:
    """Spark's notation for memory: a number with k, m, g or t; bare numbers are MiB."""
    match = re.fullmatch(r"(\d+)([kmgt]?)b?", memory.strip().lower())
    if match is None:
        raise UnavailableError(f"Spark's memory must be a number with k, m, g or t, such as 1g; got {memory!r}")
    return max(1, int(match[1]) * {"k": 1 << 10, "": _MIB, "m": _MIB, "g": 1 << 30, "t": 1 << 40}[match[2]] // _MIB)


def _clear(scratch: Path) -> None:
    for name in ("local", "tmp", "warehouse"):
        shutil.rmtree(scratch / name, ignore_errors=True)
        (scratch / name).mkdir(parents=True, exist_ok=True)
    (scratch / "log4j2.properties").write_text(_LOG4J.format(folder=scratch))


def _last_words(said: Path, limit_bytes: int = 2_000) -> str:
    return said.read_bytes()[-limit_bytes:].decode(errors="replace").strip()


def _end(gateway: Any) -> None:
    """Ends the JVM: politely by closing the pipe that it lives on, and then for good."""
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
