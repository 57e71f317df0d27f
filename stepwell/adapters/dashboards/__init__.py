"""Dashboards as code: one definition of each panel, drawn by Grafana and by ``stepwell dashboard``.

Read in this order: `model` (what a panel is), ``catalogue`` and the modules it lists (the panels), ``sql/`` (what they
ask), `macros` (how Grafana's macros and variables become plain SQL), `reading` (asking a database), `charts` and `page`
(the static page). ``compose/grafana/make.py`` writes the same panels as Grafana's JSON.
"""
