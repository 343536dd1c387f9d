"""Controllers, one folder each: README.md, plan.py (pure decisions), controller.py (reads, calls the plan, writes)."""
