"""A story as one HTML page: everything inline, nothing fetched, readable without colours."""

from __future__ import annotations

import json
from html import escape
from itertools import count

from strandline.chaos.explain.chart import draw
from strandline.chaos.explain.story import HELD, Step, Story, names
from strandline.chaos.explain.text import state_words

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.45 system-ui, "DejaVu Sans", sans-serif; color: #1a1a1a; background: #fff; margin: 2rem auto;
  max-width: 1180px; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0 0 .3rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
p.lead { margin: 0 0 1rem; } .bad { color: #a33b00; font-weight: 600; }
code, pre, td.num { font: 13px/1.4 ui-monospace, "DejaVu Sans Mono", monospace; }
pre { background: #f4f4f2; padding: .6rem .8rem; overflow-x: auto; border-radius: 4px; margin: .4rem 0; }
svg { width: 100%; height: auto; display: block; }
svg text { font: 11px system-ui, "DejaVu Sans", sans-serif; fill: #1a1a1a; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th { text-align: left; font-weight: 600; border-bottom: 2px solid #999; padding: .25rem .5rem; position: sticky; top: 0;
  background: #fff; }
td { padding: .2rem .5rem; border-bottom: 1px solid #e4e4e0; vertical-align: top; }
td.num { text-align: right; white-space: nowrap; } td.state { white-space: nowrap; color: #444; font-size: 12px; }
tr.record td:last-child::before { content: "\\25CF  "; color: #d55e00; }
tr.truncated td:last-child::before { content: "\\2702  "; color: #d55e00; }
tr.violation td { background: #fff0e6; font-weight: 600; }
tr.violation td:last-child::before { content: "\\2716  "; color: #a33b00; }
tr.fault td:last-child::before { content: "\\26A1  "; }
details summary { cursor: pointer; margin: .3rem 0; }
ul.key { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; font-size: 13px; }
ul.key svg { display: inline-block; width: 26px; height: 12px; vertical-align: -2px; margin-right: .3rem; }
"""


def render(story: Story) -> str:
    """HTML text of the page that tells the story."""
    held = story.error == HELD
    title = f"{story.name}: {story.error}"
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f'<p class="lead{"" if held else " bad"}">{escape(story.message or "everything held")}</p>',
        f"<p>Concerned: <b>{escape(story.subject)}</b>"
        + (f"; {escape(story.record)}" if story.record else "")
        + f". It ended at {story.moment(story.failed_ms)}.</p>",
        *_replay(story),
        "<h2>Who led, who held what</h2>",
        draw(story),
        "<h2>What happened</h2>",
        _table(story),
        "<h2>Options, expanded</h2>",
        "<details><summary>Everything that was decided beforehand</summary>",
        f"<pre>{escape(json.dumps(story.options, indent=2, default=str))}</pre></details>",
        "</body></html>",
    ]
    return "\n".join(parts)


def _replay(story: Story) -> list[str]:
    if not story.replay:
        return []
    return ["<h2>Run it again</h2>", *(f"<pre>{escape(command)}</pre>" for command in story.replay)]


def _table(story: Story) -> str:
    heads = [story.unit, "leader", "epochs", "ISR", *story.nodes, "event"]
    faults = count(1)
    rows = "".join(_row(story, step, next(faults) if step.kind == "fault" else 0) for step in story.steps)
    return f"<table><tr>{''.join(f'<th>{escape(head)}</th>' for head in heads)}</tr>{rows}</table>"


def _row(story: Story, step: Step, fault: int) -> str:
    committed = story.committed_at(step.at_ms)
    cells = [f'<td class="num">{step.at_ms:,.0f}</td>']
    if committed is None:
        cells.append("<td></td><td></td><td></td>")
    else:
        leader = f"n{committed.leader}" if committed.leader >= 0 else "none"
        elr = f" ELR {names(committed.elr)}" if committed.elr else ""
        epochs = f"{committed.leader_epoch} / {committed.partition_epoch}"
        cells.append(f"<td>{leader}</td><td>{epochs}</td><td class='state'>{escape(names(committed.isr) + elr)}</td>")
    cells += [f'<td class="state">{escape(state_words(story.at(node, step.at_ms)))}</td>' for node in story.nodes]
    cells.append(f"<td>{f'{fault}: ' if fault else ''}{escape(step.text)}</td>")
    return f'<tr class="{step.kind}">{"".join(cells)}</tr>\n'
