"""Starts, stops and replaces the single Spark session of a process. Its settings are in `spark/`, with their reasons.

Spark allows one session in a process, and a setting that comes after its start has no effect.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil  # type: ignore[import-untyped]

from tocsin.pipeline.java import ensure_java
from tocsin.pipeline.spark import masters
from tocsin.pipeline.spark.cluster_settings import SHUFFLE_PARTITIONS, cluster_settings, worker_python
from tocsin.pipeline.spark.local_settings import LOOPBACK, local_settings
from tocsin.pipeline.spark.s3a import with_bucket
from tocsin.pipeline.spark.s3a_jars import ensure_s3a_jars
from tocsin.pipeline.spark.secret_settings import without_secrets
from tocsin.pipeline.spark.shipped_archives import pack_worker_modules
from tocsin.pipeline.spark.site_defaults import site_defaults
from tocsin.storage.s3 import Bucket
from tocsin.wire.errors import UnavailableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_START_TIMEOUT_S: Final = 120.0
_STOP_TIMEOUT_S: Final = 20.0
_PARTITIONS_PER_SLOT: Final = 3
# Another program's Spark must not lend us its running JVM or its way to start one.
_FOREIGN: Final = (
    "SPARK_REMOTE",
    "SPARK_CONNECT_MODE_ENABLED",
    "PYSPARK_SUBMIT_ARGS",
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
    "PYSPARK_DRIVER_PYTHON",
)
# Nor its jars, settings and folders, where Spark runs on this machine alone. On a cluster those are the site's.
_FOREIGN_TO_LOCAL: Final = ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_LOCAL_DIRS")
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
    scratch: Path,
    *,
    master: str = "local[*]",
    driver_memory: str = "1g",
    conf: Mapping[str, str] | None = None,
    ui: bool = False,
    worker_archive: str = "",
    bucket: Bucket | None = None,
) -> SparkSession:
    """Starts Spark. Here it writes only below `scratch`, whose earlier Spark content is removed.

    `local[*]` means more slots than cores (see `slots`). `conf` overrides any of our settings. `worker_archive` is an
    archive with the Python environment of a cluster's workers, and `bucket` is the bucket that holds the tables. The
    JVM ends a moment after this process, however the process ends. Raises UnavailableError with Spark's reason. PySpark
    forgets a session whose JVM was killed (`kill`) when the next session starts.
    """
    from pyspark import SparkContext

    if _is_running(SparkContext._active_spark_context):
        raise RuntimeError("this process already has a Spark session; there is one per process")
    scratch = scratch.resolve()
    _clear(scratch)
    for name in _FOREIGN:
        os.environ.pop(name, None)
    for name in _NOISY:
        logging.getLogger(name).disabled = True
    # glibc gives every thread its own arena; with Spark's hundred threads that wastes memory.
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    their_conf = dict(conf or {})
    if masters.is_local(master):
        spark_settings = _prepare_local(scratch, master, driver_memory, their_conf, ui=ui)
    else:
        spark_settings = _prepare_cluster(scratch, master, driver_memory, their_conf, ui, worker_archive)
    if bucket is not None:
        spark_settings = with_bucket(spark_settings, bucket, ensure_s3a_jars(spark_settings), their_conf)
    ensure_java()
    return _launch(scratch, spark_settings, equip=None if masters.is_local(master) else _equip_workers)


def _prepare_local(
    scratch: Path, master: str, driver_memory: str, conf: Mapping[str, str], *, ui: bool
) -> dict[str, str]:
    """Sets the environment of a JVM that does all work itself. Returns its settings."""
    for name in _FOREIGN_TO_LOCAL:
        os.environ.pop(name, None)
    # The Python workers run the same Python, so they can import the same packages as this process.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = LOOPBACK  # where the UI listens
    return local_settings(scratch, master=master, driver_memory=driver_memory, conf=conf, ui=ui)


def _prepare_cluster(  # noqa: PLR0917
    scratch: Path, master: str, driver_memory: str, conf: Mapping[str, str], ui: bool, worker_archive: str
) -> dict[str, str]:
    """Sets the environment of a JVM that is the driver of a cluster. Returns its settings."""
    spark_settings = cluster_settings(
        scratch, master=master, driver_memory=driver_memory, conf=conf, site=site_defaults(os.environ), ui=ui,
        worker_archive=worker_archive,
    )  # fmt: skip
    os.environ["PYSPARK_PYTHON"] = worker_python(spark_settings, os.environ, conf=conf, worker_archive=worker_archive)
    # The driver's own temporary files, and no worker's: `spark.local.dir` would name the folder for all of them.
    os.environ["SPARK_LOCAL_DIRS"] = str(scratch / "local")
    if (host := masters.driver_host(master)) is not None:
        os.environ.setdefault("SPARK_LOCAL_IP", host)  # where the UI listens
    return spark_settings


def _launch(
    scratch: Path, spark_settings: Mapping[str, str], equip: Callable[[SparkSession, Path], None] | None
) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    from tocsin.pipeline.java_functions import register_java_functions

    with SparkContext._lock:
        _forget_session()  # else the conf is made by the JVM of a session that PySpark itself has stopped
    # These settings become a command line, which every user of the machine can read.
    shown_conf = SparkConf(loadDefaults=False).setAll(list(without_secrets(spark_settings).items()))
    stderr_path = scratch / "spark-stderr.log"
    with contextlib.suppress(FileNotFoundError):
        stderr_path.replace(scratch / "spark-stderr.previous.log")  # the output of the previous session
    with stderr_path.open("wb") as stderr, _limited_start():
        # Relative paths of Spark or Java (core dumps, hs_err files) are then below the scratch folder too.
        popen = {"stdout": stderr, "stderr": stderr, "cwd": scratch}
        try:
            gateway = launch_gateway(shown_conf, popen)
        except (PySparkException, OSError) as error:
            raise UnavailableError(f"Spark did not start: {_last_words(stderr_path) or error}") from error
    started: SparkSession | None = None
    try:
        spark_conf = SparkConf(loadDefaults=False).setAll(list(spark_settings.items()))
        # Both steps under one lock: otherwise a thread that uses the old session could start its own session in
        # between.
        with SparkContext._lock:
            _forget_session()
            started = SparkSession(SparkContext(conf=spark_conf, gateway=gateway))
        _refuse_other_version(started)
        _forget_functions(started)
        register_java_functions(started, scratch / "tmp")
        if equip is not None:
            equip(started, scratch)
    except Exception as error:
        reason = str(error)  # str() asks the JVM, so it comes before its end
        if started is not None:
            stop(started)
        else:
            _end(gateway)
            with SparkContext._lock:
                _forget_session()
        if isinstance(error, UnavailableError):
            raise
        raise UnavailableError(f"Spark did not start: {reason}") from error
    return started


def _equip_workers(spark: SparkSession, scratch: Path) -> None:
    """Sends our package to the workers, checks that they can run it, and adapts to the size of the cluster."""
    from tocsin.pipeline.spark.worker_check import check_workers

    path_before = list(sys.path)
    spark.sparkContext.addPyFile(str(pack_worker_modules(scratch / "shipped")))
    sys.path[:] = path_before  # PySpark puts the archive before this process's own modules
    check_workers(spark, timeout_s=_START_TIMEOUT_S)
    if spark.sparkContext.getConf().get(SHUFFLE_PARTITIONS) is None:
        # A few tasks for each slot that there is; AQE joins those that turn out small.
        spark.conf.set(SHUFFLE_PARTITIONS, str(_PARTITIONS_PER_SLOT * spark.sparkContext.defaultParallelism))


def _refuse_other_version(spark: SparkSession) -> None:
    import pyspark

    if spark.version != pyspark.__version__:
        raise UnavailableError(
            f"SPARK_HOME has Spark {spark.version}, and Tocsin needs {pyspark.__version__}",
            hint="unset SPARK_HOME (SPARK_CONF_DIR alone names the site's settings), or let it name that version",
        )


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
