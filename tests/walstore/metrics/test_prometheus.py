"""What Prometheus is told: every log once, on any thread, and nothing of logs that are closed."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tests import programs
from tests.observed import COPY, GROUP, SCRUB, UPLOAD, NumbersLog
from walstore.metrics import PrometheusMetrics
from walstore.metrics.definitions import HISTOGRAMS, METRICS


@pytest.fixture
def registry() -> CollectorRegistry:
    """A registry of the test's own."""
    return CollectorRegistry()


def test_a_log_has_every_metric(registry: CollectorRegistry) -> None:
    log = NumbersLog(
        errors={"DiskFullError": 1},
        cursor_lag_records={"billing": 4},
        groups={"workers": GROUP},
        upload=UPLOAD,
        copies=(COPY,),
        replicated_limit=3,
        scrub=SCRUB,
        last_scrub=SCRUB,
    )
    observer = PrometheusMetrics(registry).attach(log, "orders")
    observer.on_commit(10, 4096, 0.003, 0.002)
    shown = {family.name: family for family in registry.collect()}
    assert set(shown) == {metric.name for metric in (*METRICS, *HISTOGRAMS)}
    assert all(family.samples for family in shown.values())
    get = registry.get_sample_value
    log.set(commits=5, tier_reads=2)
    assert get("walstore_commits_total", {"log": "orders"}) == 5
    assert get("walstore_reads_total", {"log": "orders", "tier": "cloud"}) == 2
    assert get("walstore_errors_total", {"type": "DiskFullError"}) == 1
    assert get("walstore_cursor_lag_records", {"log": "orders", "cursor": "billing"}) == 4
    assert get("walstore_copy_present", {"log": "orders", "copy": "tls://b:7430"}) == 0
    assert get("walstore_copy_lag_records", {"log": "orders", "copy": "tls://b:7430"}) == 7
    assert get("walstore_scrub_end_timestamp_seconds", {"log": "orders"}) == 1_700_000_000
    assert get("walstore_scrub_checked_bytes", {"log": "orders"}) == 5
    assert get("walstore_scrub_total_bytes", {"log": "orders"}) == 9
    assert get("walstore_scrub_damaged_segments", {"log": "orders", "copy": "own"}) == 2
    assert get("walstore_scrub_left_segments", {"log": "orders", "copy": "own"}) == 1
    assert get("walstore_append_seconds_sum", {"log": "orders"}) == 0.003
    assert get("walstore_append_seconds_bucket", {"log": "orders", "le": "0.0025"}) == 0
    assert get("walstore_append_seconds_bucket", {"log": "orders", "le": "0.005"}) == 1
    assert get("walstore_commit_records_count", {"log": "orders"}) == 1


def test_both_text_formats_are_well_formed(registry: CollectorRegistry) -> None:
    """OpenMetrics is stricter about names; the parser is Prometheus' own."""
    observer = PrometheusMetrics(registry).attach(NumbersLog(), "orders")
    observer.on_commit(1, 100, 0.1, 0.1)
    text = generate_latest(registry).decode()
    families = {family.name for family in text_string_to_metric_families(text)}
    assert {metric.name for metric in (*METRICS, *HISTOGRAMS)} == families
    assert generate_openmetrics(registry).endswith(b"# EOF\n")


def test_many_objects_share_one_registry(registry: CollectorRegistry) -> None:
    observers = [PrometheusMetrics(registry).attach(NumbersLog(), f"log-{at}") for at in range(100)]
    text = generate_latest(registry).decode()
    assert text.count("# TYPE walstore_commits_total") == 1
    assert text.count("\nwalstore_commits_total{") == 100
    assert "\nwalstore_logs 100.0" in text
    for observer in observers:
        observer.close()
    text = generate_latest(registry).decode()
    assert 'log="' not in text
    assert "\nwalstore_openings_total 100.0" in text


def test_a_log_has_its_own_name_or_the_one_that_was_given(registry: CollectorRegistry) -> None:
    PrometheusMetrics(registry).attach(NumbersLog(commits=1), "orders")
    PrometheusMetrics(registry, log="users").attach(NumbersLog(commits=3), "0002")
    get = registry.get_sample_value
    assert get("walstore_commits_total", {"log": "orders"}) == 1
    assert get("walstore_commits_total", {"log": "users"}) == 3
    assert get("walstore_commits_total", {"log": "0002"}) is None


def test_a_name_that_is_no_text_does_not_spoil_the_rest(registry: CollectorRegistry) -> None:
    """Directories may be named by any bytes."""
    PrometheusMetrics(registry).attach(NumbersLog(), "caf\udce9")
    assert 'walstore_commits_total{log="caf?"} 0.0' in generate_latest(registry).decode()


def test_the_default_registry_is_that_of_the_package() -> None:
    observer = PrometheusMetrics(log="default registry").attach(NumbersLog(), "orders")
    try:
        assert 'walstore_segments{log="default registry"} 1.0' in generate_latest().decode()
    finally:
        observer.close()


def test_names_that_are_taken_are_an_error(registry: CollectorRegistry) -> None:
    """Somebody else's metric of the same name is noticed at once, not when Prometheus asks."""
    from prometheus_client import Counter

    Counter("walstore_commits", "Mine.", registry=registry)
    with pytest.raises(ValueError, match="walstore_commits"):
        PrometheusMetrics(registry)


def test_a_registry_is_not_kept() -> None:
    registry = CollectorRegistry()
    PrometheusMetrics(registry).attach(NumbersLog(), "orders")
    gone = weakref.ref(registry)
    del registry
    gc.collect()
    assert gone() is None


def test_looking_while_logs_open_commit_and_close(registry: CollectorRegistry) -> None:
    """Another thread asks all the time; each answer is well-formed and counters never go back."""
    metrics = PrometheusMetrics(registry)
    stays = metrics.attach(NumbersLog(), "stays")
    done = threading.Event()
    commits: list[float] = []
    openings: list[float] = []
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            while not done.is_set():
                text = generate_latest(registry).decode()
                found = {
                    (sample.name, sample.labels.get("log")): sample.value
                    for family in text_string_to_metric_families(text)
                    for sample in family.samples
                }
                commits.append(found["walstore_commit_records_count", "stays"])
                openings.append(found["walstore_openings_total", None])
        except BaseException as error:  # noqa: BLE001 - shown by the test
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    rounds = 0
    while len(commits) < 5 and thread.is_alive():
        passing = [metrics.attach(NumbersLog(), f"log-{at % 3}") for at in range(10)]
        for observer in (stays, *passing):
            observer.on_commit(1, 100, 0.1, 0.1)
        for observer in passing:
            observer.close()
        rounds += 1
    done.set()
    thread.join()
    assert not errors
    assert commits == sorted(commits)
    assert openings == sorted(openings)
    assert registry.get_sample_value("walstore_openings_total") == 10 * rounds + 1
    assert registry.get_sample_value("walstore_commit_records_count", {"log": "stays"}) == rounds


WITHOUT_PACKAGE = """
import sys
sys.modules["prometheus_client"] = None  # importing it now fails
from walstore import InvalidSettingsError
from walstore.metrics import PrometheusMetrics
try:
    PrometheusMetrics()
except InvalidSettingsError as error:
    print(error)
"""


@pytest.mark.slow
def test_without_the_package_the_error_names_the_extra() -> None:
    done = programs.run(WITHOUT_PACKAGE)
    assert done.returncode == 0, done.stderr
    assert 'pip install "walstore[metrics]"' in done.stdout
