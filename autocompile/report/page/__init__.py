"""``report.html``: one file with the whole report, its plots, and no need of a network."""
