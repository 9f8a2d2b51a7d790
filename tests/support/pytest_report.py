"""pytest plugin of tests/run: one JSON line per test to the file descriptor TURBOLM_REPORT_FD."""
import json
import os

_fd = int(os.environ["TURBOLM_REPORT_FD"])
_running = {}  # test -> what is known so far; a test has three phases: setup, call, teardown


def _send(status, name, seconds=0.0, detail=""):
    line = json.dumps({"status": status, "name": name, "seconds": seconds, "detail": detail})
    with os.fdopen(os.dup(_fd), "wb") as f:
        f.write(line.encode() + b"\n")


def _reason(report):
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(getattr(report, "wasxfail", ""))


def pytest_collectreport(report):
    if report.failed:
        _send("fail", report.nodeid or "collection", detail=str(report.longrepr))
    elif report.skipped:
        _send("skip", report.nodeid, detail=_reason(report))


def pytest_runtest_logreport(report):
    name = report.nodeid.removeprefix("tests/")
    test = _running.setdefault(name, {"status": "pass", "seconds": 0.0, "detail": ""})
    test["seconds"] += report.duration
    if report.failed:
        sections = ["%s\n%s" % section for section in report.sections]
        test["status"] = "fail"
        test["detail"] += "\n".join(sections + [str(report.longrepr)])
    elif report.skipped and test["status"] == "pass":
        test["status"] = "skip"
        test["detail"] = _reason(report)
    if report.when == "teardown":
        _send(test["status"], name, test["seconds"], test["detail"])
        del _running[name]
