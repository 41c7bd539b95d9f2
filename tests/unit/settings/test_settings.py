from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tocsin.cli.commands.config import check, show, to_toml
from tocsin.settings import OTHER_VARIABLES, Settings, SettingsError, is_secret, known_settings, read

NAMES = "must be a name, or dataverse.name, such as Default.downtown"
NETWORKS = "must be addresses or networks with spaces between them, such as 127.0.0.1 10.0.0.0/8"
ADDRESSES = "must be an address such as http://127.0.0.1:8470"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without a settings file, and an environment without our variables."""
    monkeypatch.chdir(tmp_path)
    for name in (*OTHER_VARIABLES, *("TOCSIN_" + path.upper().replace(".", "__") for path in known_settings())):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def problems(text: str, env: dict[str, str] | None = None, flags: dict[str, object] | None = None) -> list[str]:
    Path("tocsin.toml").write_text(text)
    with pytest.raises(SettingsError) as raised:
        Settings.load(env=env or {}, flags=flags)
    return raised.value.problems


def test_without_anything_the_defaults_hold() -> None:
    settings = Settings.load(env={})
    assert (settings.cluster.http.host, settings.cluster.http.port) == ("127.0.0.1", 8470)
    assert settings.data == Path("tocsin-data")


def test_flags_win_over_the_environment_which_wins_over_the_file_which_wins_over_defaults() -> None:
    Path("tocsin.toml").write_text("data = 'a'\n[cluster.http]\nhost = 'file'\nport = 1\nconnections_limit = 2")
    env = {"TOCSIN_CLUSTER__HTTP__HOST": "env", "TOCSIN_CLUSTER__HTTP__PORT": "3"}
    flags = {"cluster.http.port": 4, "data": None}
    settings = Settings.load(env=env, flags=flags)
    http = settings.cluster.http
    assert (settings.data, http.connections_limit, http.host, http.port) == (Path("a"), 2, "env", 4)
    assert http.body_limit_bytes == 64 << 20


def test_the_file_is_the_one_named_else_the_variables_else_the_one_at_hand() -> None:
    for name in ("named", "variable", "tocsin"):
        Path(f"{name}.toml").write_text(f"data = '{name}'")
    env = {"TOCSIN_CONFIG": "variable.toml"}
    assert Settings.load(Path("named.toml"), env).data == Path("named")
    assert Settings.load(env=env).data == Path("variable")
    assert Settings.load(env={}).data == Path("tocsin")


def test_a_file_that_was_asked_for_and_is_not_there_is_an_error() -> None:
    for ask in ({"file": Path("none.toml")}, {"env": {"TOCSIN_CONFIG": "none.toml"}}):
        with pytest.raises(SettingsError, match=r"none\.toml: no such settings file"):
            Settings.load(**{"env": {}, **ask})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("cluster.http.port = 70000", "cluster.http.port: must be ≤ 65535, got 70000"),
        ("cluster.http.port = -1", "cluster.http.port: must be ≥ 0, got -1"),
        ("cluster.http.port = true", "cluster.http.port: must be a number, got True"),
        ("cluster.http.port = 'x'", "cluster.http.port: must be a whole number, got 'x'"),
        ("cluster.http.port = 1.5", "cluster.http.port: must be a whole number, got 1.5"),
        ("cluster.http.host = 5", "cluster.http.host: must be text, got 5"),
        ("cluster.http = 5", "cluster.http: must be a table, got 5"),
        ("cluster.auth.mode = 'no'", "cluster.auth.mode: must be one of 'auto', 'on' or 'off', got 'no'"),
        ("cluster.statements.timeout_s = 0", "cluster.statements.timeout_s: must be > 0, got 0"),
        ("cluster.statements.timeout_s = inf", "cluster.statements.timeout_s: must be a finite number, got inf"),
        ("cluster.spark.conf.x = 5", "cluster.spark.conf.x: must be text, got 5"),
        (
            "cluster.spark.driver_memory = '1'",
            "cluster.spark.driver_memory: must be a number with k, m, g or t, such as 1g, got '1'",
        ),
        *(
            (f"broker.name = '{name}'", f"broker.name: {NAMES}, got '{name}'")
            for name in ("a.b.c", "../evil", ".b", "a. b")
        ),
        ("cluster.spark.ping_timeout_s = 31", "cluster.spark.ping_timeout_s: must be ≤ 30, got 31"),
        *(
            (f"broker.cluster.{key} = '{url}'", f"broker.cluster.{key}: {ADDRESSES}, got '{url}'")
            for key in ("url", "callback")
            for url in ("nonsense", "ftp://x", "http://", "http://x:0", "http://x:port", "http://x y")
        ),
        ("broker.cluster.url = ''", f"broker.cluster.url: {ADDRESSES}, got ''"),
        (
            "broker.cluster.url = 'http://me:secret@x'",
            "broker.cluster.url: must not carry a password; there is broker.cluster.token, got 'http://…@x'",
        ),
        (
            "cluster.feeds.private = 'x'",
            (
                "cluster.feeds.private: must be auto, allowed, refused, or networks such as 10.0.0.0/8 or 10.0.0.5:80, "
                "got 'x'"
            ),
        ),
        (
            "broker.http.trusted_proxies = 'proxy.example'",
            f"broker.http.trusted_proxies: {NETWORKS}, got 'proxy.example'",
        ),
        ("data = ''", "data: must name a folder, got ''"),
        ("data = '~/x'", "data: must be written out, ~ is not expanded here, got '~/x'"),
        ("data = 7", "data: must name a folder, got 7"),
        ("cluster.http.prt = 1", "cluster.http.prt: unknown key; did you mean cluster.http.port?"),
        ("port = 1", "port: unknown key; did you mean cluster.http.port?"),
        ("cluser.http.port = 1", "cluser: unknown key; did you mean cluster?"),
        ("CLUSTER.HTTP.PORT = 1", "CLUSTER: unknown key; did you mean cluster?"),
        ("zzz = 1", "zzz: unknown key"),
    ],
)
def test_an_error_names_the_path_the_rule_the_value_and_the_source(text: str, problem: str) -> None:
    assert problems(text) == [f"{problem} (in tocsin.toml)"]


def test_every_problem_is_named_at_once() -> None:
    assert len(problems("a = 1\n[cluster.http]\nport = 70000\nhosst = 'x'", {"TOCSIN_DTA": "x"})) == 4


def test_an_error_names_the_variable_or_the_flag_that_set_the_value() -> None:
    env = {"TOCSIN_CLUSTER__HTTP__PORT": "x"}
    assert problems("", env) == ["cluster.http.port: must be a whole number, got 'x' (from TOCSIN_CLUSTER__HTTP__PORT)"]
    flags: dict[str, object] = {"cluster.http.port": 70_000}
    assert problems("", env, flags) == ["cluster.http.port: must be ≤ 65535, got 70000 (from the flag --port)"]


def test_an_unknown_variable_fails_and_names_the_nearest() -> None:
    said = "TOCSIN_CLUSTER__PORT: unknown variable; did you mean TOCSIN_CLUSTER__HTTP__PORT? (in the environment)"
    assert problems("", {"TOCSIN_CLUSTER__PORT": "1"}) == [said]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOCSIN_SERVICE_HOST", "10.96.0.7"),
        ("TOCSIN_SERVICE_PORT", "8470"),
        ("TOCSIN_SERVICE_PORT_HTTP", "8470"),
        ("TOCSIN_PORT", "tcp://10.96.0.7:8470"),
        ("TOCSIN_PORT_8470_TCP", "tcp://10.96.0.7:8470"),
        ("TOCSIN_PORT_8470_TCP_PROTO", "tcp"),
        ("TOCSIN_PORT_8470_TCP_PORT", "8470"),
        ("TOCSIN_PORT_8470_TCP_ADDR", "10.96.0.7"),
        ("TOCSIN_BROKER_SERVICE_HOST", "10.96.0.8"),
        ("TOCSIN_BROKER_PORT", "tcp://10.96.0.8:8480"),
        ("TOCSIN_BROKER_PORT_8480_TCP_ADDR", "10.96.0.8"),
        ("TOCSIN_IMAGE_VERSION", "1.2"),
    ],
)
def test_variables_of_others_are_ignored_with_a_warning(
    name: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert Settings.load(env={name: value}) == Settings()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert name in caplog.text


def test_all_of_them_are_told_in_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    env = {"TOCSIN_SERVICE_HOST": "10.96.0.7", "TOCSIN_PORT": "tcp://10.96.0.7:8470"}
    Settings.load(env=env)
    assert len(caplog.records) == 1
    assert all(name in caplog.text for name in env)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TOCSIN_CLUSTER_HTTP_PORT", "TOCSIN_CLUSTER__HTTP__PORT"),
        ("TOCSIN_CLUSTER_NONSENSE", None),
        ("TOCSIN_BROKER_NAME", "TOCSIN_BROKER__NAME"),
        ("TOCSIN_DTA", "TOCSIN_DATA"),
        ("TOCSIN_TOKN", "TOCSIN_TOKEN"),
        ("TOCSIN_PORT", "TOCSIN_CLUSTER__HTTP__PORT"),
        ("TOCSIN_CLUSTR__HTTP__PORT", "TOCSIN_CLUSTER__HTTP__PORT"),
        ("TOCSIN_SERVICE__HOST", None),
    ],
)
def test_a_misspelt_variable_of_ours_is_an_error(name: str, meant: str | None) -> None:
    (problem,) = problems("", {name: "9000"})
    assert problem.startswith(f"{name}: unknown variable")
    assert meant is None or f"did you mean {meant}?" in problem


SECRET = "s3cret-of-the-operator"
SECRETS = {
    "TOCSIN_BROKER__ACCOUNTS__ADMIN_TOKEN": SECRET,
    "TOCSIN_BROKER__CLUSTER__TOKEN": f"tocsin_{SECRET}",
    "TOCSIN_CLUSTER__SPARK__CONF": f'{{"spark.hadoop.fs.s3a.secret.key" = "{SECRET}", "spark.x" = "1"}}',
}


def test_show_prints_no_secret_and_what_it_prints_is_a_file_that_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    for explain in (False, True):
        assert show(explain=explain) == 0
        out, err = capsys.readouterr()
        assert SECRET not in out + err
        assert "# admin_token is set and not shown, because it is a secret  # from TOCSIN_BROKER__ACCOUNTS" in out
        assert "spark.hadoop.fs.s3a.secret.key" in out
        assert "broker.cluster.token" in err
        # The file gives everything else again, and the secrets come from where they came from.
        shown = Settings.model_validate(tomllib.loads(out))
        assert shown.broker.accounts.admin_token.get_secret_value() == ""
        assert shown.cluster.spark.conf == {"spark.x": "1"}
    monkeypatch.delenv("TOCSIN_CLUSTER__SPARK__CONF")
    loaded = read()
    assert loaded.settings.broker.accounts.admin_token.get_secret_value() == SECRET
    assert SECRET not in repr(loaded) + str(loaded.settings) + loaded.settings.model_dump_json()


@pytest.mark.parametrize(
    "text",
    [
        f"broker.accounts.admin_token = ['{SECRET}']",
        f"broker.accounts.admin_token.x = '{SECRET}'",
        f"broker.accounts.admin_tokn = '{SECRET}'",
        f"broker.accounts = '{SECRET}'",
        f"broker = '{SECRET}'",
        f"broker.cluster.token = {{a = '{SECRET}'}}",
        f"broker.cluster.url = 'http://me:{SECRET}@x'",
        f"broker.cluster.callback = 'http://me:a/{SECRET} @x'",
        f"cluster.spark.conf = '{SECRET}'",
        f"cluster.spark.conf.'a.password' = ['{SECRET}']",
        f"x = {SECRET}",
        f"broker.cluster.url = 'u:{SECRET}@x'",
        f"broker.cluster.url = '{SECRET}@x'",
        f"broker.cluster.url = ['u:{SECRET}@x']",
        f"broker.cluster.url = 'u:a@{SECRET}@x'",
        *(
            f"broker.cluster.url = 'http://x y/?a=1&{name}={SECRET}'"
            for name in ("token", "access_token", "apiKey", "client-secret", "PASSWORD", "credentials", "sig")
        ),
        f"broker.cluster.url = ['http://x/?token={SECRET}']",
        f"cluster.spark.conf.'spark.x' = ['-Djavax.net.ssl.keyStorePassword={SECRET}']",
        f"cluster.spark.conf.'fs.azure.account.key.x' = ['{SECRET}']",
        f"cluster.spark.conf.'spark.x.PGPASS' = ['{SECRET}']",
        f"cluster.spark.conf.'spark.x.header' = ['Bearer {SECRET}']",
        f"cluster.spark.conf.'spark.x.header' = ['Basic {SECRET}']",
        f"cluster.cache.x = 'Bearer {SECRET}'",
        f"broker.cluster.url = 'Bearer {SECRET}'",
        f"broker.cluster.url = 'tocsin_{SECRET}'",
    ],
)
def test_no_error_of_settings_repeats_a_secret(text: str) -> None:
    assert SECRET not in str(problems(text))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("fs.azure.account.key.x", SECRET),
        ("spark.x.apiKey", SECRET),
        ("spark.x.PassPhrase", SECRET),
        ("spark.driver.extraJavaOptions", f"-Dx=1 -Djavax.net.ssl.keyStorePassword={SECRET} -Dy=2"),
        ("spark.driver.extraJavaOptions", f"--password {SECRET}"),
        ("spark.x.url", f"jdbc:postgresql://db/x?user=me&password={SECRET}"),
        ("spark.x.url", f"jdbc:postgresql://me:{SECRET}@db/x"),
        ("spark.x.url", f"jdbc:oracle:thin:me/{SECRET}@db"),
        ("spark.x.url", f"jdbc:sqlserver://db;user=me;pwd={SECRET}"),
        ("spark.x.json", f'{{"token": "{SECRET}"}}'),
        ("spark.x.url", f"https://x.example/?sv=1&sig={SECRET}"),
        ("spark.executorEnv.PGPASS", SECRET),
        ("spark.x.pw", SECRET),
        ("spark.x.Authorization", SECRET),
        ("spark.x.bearer", SECRET),
        ("spark.x.session_cookie", SECRET),
        ("spark.x.header", f"Bearer {SECRET}"),
        ("spark.x.header", f"bearer%20{SECRET}"),
        ("spark.x.header", f"BASIC {SECRET}"),
        ("spark.x.headers", f"Accept: */*, Authorization: Digest {SECRET}"),
        ("spark.x.url", f"https://x.example/?next=%3Fpassword%3D{SECRET}"),
        ("spark.x.urls", f"https://x.example,https://me:{SECRET}@y.example"),
        ("spark.x.id", f"eyJhbGciOiJIUzI1NiJ9.{SECRET}"),
        ("spark.x.id", f"tocsin_{SECRET}"),
    ],
)
def test_show_prints_no_secret_in_a_key_or_value_for_spark(key: str, value: str) -> None:
    loaded = read(env={}, flags={"cluster.spark.conf": {key: value, "spark.ui.port": "4040", "spark.x.y": "-Dx=1"}})
    out = "\n".join(to_toml(loaded))
    assert SECRET not in out
    assert f'# conf also has "{key}", not shown' in out
    conf = Settings.model_validate(tomllib.loads(out)).cluster.spark.conf
    assert conf == {"spark.ui.port": "4040", "spark.x.y": "-Dx=1"}


def test_no_error_about_a_variable_repeats_a_secret() -> None:
    for name in ("TOCSIN_CLUSTER__SPARK__CONF", "TOCSIN_BROKER__TOKEN", "TOCSIN_TOKN"):
        told = str(problems("", {name: SECRET}))
        assert name in told
        assert SECRET not in told


def test_variables_that_are_no_settings_pass() -> None:
    assert Settings.load(env={name: "x" for name in OTHER_VARIABLES if name != "TOCSIN_CONFIG"}) == Settings()


def test_what_is_not_toml_is_named_with_its_place() -> None:
    assert problems("data = ")[0].startswith("tocsin.toml: is not TOML: Invalid value (at ")
    Path("tocsin.toml").write_bytes(b"data = '\xff'")
    with pytest.raises(SettingsError, match=r"tocsin\.toml: is not TOML"):
        Settings.load(env={})


def test_settings_of_spark_may_be_written_with_or_without_quotes() -> None:
    Path("tocsin.toml").write_text("[cluster.spark.conf]\nspark.sql.x = '1'\n'spark.sql.y' = '2'")
    env = {"TOCSIN_CLUSTER__SPARK__CONF": "{'spark.z' = '3'}"}
    assert Settings.load(env=env).cluster.spark.conf == {"spark.sql.x": "1", "spark.sql.y": "2", "spark.z": "3"}
    assert problems("", {"TOCSIN_CLUSTER__SPARK__CONF": "spark.z=3"})[0].startswith(
        "cluster.spark.conf: must be a table"
    )


@pytest.mark.parametrize(
    ("host", "mode", "needed"),
    [
        ("127.0.0.1", "auto", False),
        ("127.8.8.8", "auto", False),
        ("::1", "auto", False),
        ("localhost", "auto", False),
        ("0.0.0.0", "auto", True),
        ("::", "auto", True),
        ("example.org", "auto", True),
        ("127.0.0.1", "on", True),
        ("0.0.0.0", "off", False),
    ],
)
def test_a_token_is_needed_for_anything_but_loopback_unless_said_otherwise(host: str, mode: str, needed: bool) -> None:
    settings = Settings.load(env={}, flags={"cluster.http.host": host, "cluster.auth.mode": mode})
    assert settings.cluster.token_needed is needed


def test_behind_a_proxy_that_is_named_loopback_is_like_any_other_address() -> None:
    for host, proxies, needed in (("127.0.0.1", "", False), ("127.0.0.1", "10.0.0.1", True), ("::1", "::1", True)):
        flags = {"cluster.http.host": host, "cluster.http.trusted_proxies": proxies}
        assert Settings.load(env={}, flags=flags).cluster.token_needed is needed
        flags = {"broker.http.host": host, "broker.http.trusted_proxies": proxies}
        broker = Settings.load(env={}, flags=flags).broker
        assert (broker.everybody_operates, broker.open_registration) == (not needed, not needed)
    off = {"cluster.http.trusted_proxies": "10.0.0.1", "cluster.auth.mode": "off"}
    assert Settings.load(env={}, flags=off).cluster.token_needed is False


def test_every_setting_has_a_description() -> None:
    assert [path for path, info in known_settings().items() if not info.description] == []


def test_settings_cannot_be_changed_later() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().cluster.http.port = 1  # type: ignore[misc]


plain = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20)


@given(
    data=plain.filter(lambda text: text.strip() and "~" not in text),
    host=plain.filter(bool),
    port=st.integers(0, 65535),
    conf=st.dictionaries(plain | st.sampled_from(["SECRET", "a.password"]), plain),
)
@example(data="x", host="x", port=1, conf={"SECRET": ""})
@example(data="x", host="x", port=1, conf={"SECRET": "x", "spark.x": "1"})
def test_what_show_prints_gives_the_same_settings_again_but_for_secrets(
    data: str, host: str, port: int, conf: dict[str, str]
) -> None:
    flags: dict[str, object] = {"data": Path(data), "cluster.http.host": host, "cluster.http.port": port}
    loaded = read(env={}, flags={**flags, "cluster.spark.conf": conf})
    shown = {
        key: value for key, value in conf.items() if not value or not is_secret(f"cluster.spark.conf.{key}", value)
    }
    expected = read(env={}, flags={**flags, "cluster.spark.conf": shown}).settings
    for explain in (False, True):
        tree = tomllib.loads("\n".join(to_toml(loaded, explain=explain)))
        assert Settings.model_validate(tree) == expected


def test_show_says_where_what_is_not_the_default_comes_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("tocsin.toml").write_text("[cluster.http]\nhost = '::1'")
    monkeypatch.setenv("TOCSIN_CLUSTER__HTTP__PORT", "9")
    assert show() == 0
    lines = capsys.readouterr().out.splitlines()
    assert 'host = "::1"  # in tocsin.toml' in lines
    assert "port = 9  # from TOCSIN_CLUSTER__HTTP__PORT" in lines
    assert 'data = "tocsin-data"' in lines


def test_check_exits_with_1_and_lists_the_problems(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.toml").write_text("a = 1\nb = 2")
    assert check(Path("bad.toml")) == 1
    assert capsys.readouterr().err.splitlines() == ["a: unknown key (in bad.toml)", "b: unknown key (in bad.toml)"]
    Path("good.toml").write_text("data = 'x'")
    assert check(Path("good.toml")) == 0
    assert "good.toml: in order" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "url = 'hdfs://node/x'",
            "cluster.storage.url: must be a folder or s3://BUCKET/PREFIX; hdfs: is not supported",
        ),
        ("url = 'gs://b/x'", "gs: is not supported"),
        ("url = 's3://'", "must be s3://BUCKET/PREFIX"),
        ("url = 's3://b/../x'", "must be s3://BUCKET/PREFIX"),
        ("url = 'file://host/x'", "must name a folder of this machine"),
        ("options = {region = 5}", "must be text"),
        ("options = {secret = 'x'}", "has an unknown key 'secret'"),
        ("options = {endpoint = 'http://x'}", "endpoint is not encrypted"),
        ("options = {endpoint = 'x:80'}", "endpoint must begin with"),
        ("options = {allow_http = 'yes'}", "allow_http must be true or false"),
        ("options = {access_key_id = 'x'}", "both access_key_id and secret_access_key"),
    ],
)
def test_a_storage_that_cannot_work_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "t.toml").write_text(f"[cluster.storage]\n{text}\n")
    with pytest.raises(SettingsError) as refused:
        read(tmp_path / "t.toml", {})
    assert problem in refused.value.message


@pytest.mark.parametrize("url", ["", "/srv/x", "x", "file:///srv/x", "s3://bucket", "s3://bucket/a/b-c"])
def test_a_storage_is_a_folder_or_a_prefix_in_a_bucket(tmp_path: Path, url: str) -> None:
    (tmp_path / "t.toml").write_text(
        f"[cluster.storage]\nurl = '{url}'\noptions = {{endpoint = 'http://x:1', allow_http = true}}\n"
    )
    own = read(tmp_path / "t.toml", {}).settings.cluster.storage
    assert (own.url, own.options) == (url, {"endpoint": "http://x:1", "allow_http": "true"})


def test_the_keys_of_a_storage_are_shown_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = {"access_key_id": "kk1", "secret_access_key": "kk2", "session_token": "kk3"}
    file = tmp_path / "t.toml"
    lines = "\n".join(f"{key} = '{value}'" for key, value in keys.items())
    file.write_text(f"[cluster.storage]\nurl = 's3://b/x'\n[cluster.storage.options]\nregion = 'eu'\n{lines}\n")
    assert show(config=file) == 0
    out, err = capsys.readouterr()
    assert 'options = {"region" = "eu"}' in out
    assert "cluster.storage.options.session_token" in err
    for wrong in ("other = 'x'", "endpoint = 'nowhere'", "region = 5"):
        file.write_text(f"[cluster.storage.options]\n{lines}\n{wrong}\n".replace("region = 'eu'", ""))
        with pytest.raises(SettingsError) as refused:
            read(file, {})
        assert "kk" not in refused.value.message
    file.write_text("[cluster.storage]\nurl = 's3://kk1:kk2@b/x'\n")
    with pytest.raises(SettingsError) as refused:
        read(file, {})
    assert "kk2" not in refused.value.message
    assert "kk" not in out + err
