"""How CI runs the tests: steps with limits, a second run of what failed, and a report.

``.ci/run`` names the steps. ``python -m tests.ci`` runs them one after the other: a step that fails does not
stop the next. Each run of pytest writes a record (``plugin.py``, ``record.py``). At the end the tests that
failed run once more, alone (``verdict.py``), and what was slow, flaky or not run is printed (``report.py``).
``choice.py`` chooses the files of a step, from imports (``selection.py``) and turns (``rotation.py``).
"""
