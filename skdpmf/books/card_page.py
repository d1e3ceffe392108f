"""The privacy card as a page in HTML: to be read on a screen, printed, signed and filed.

The page is one file without scripts, and its policy forbids it to load anything. All texts of a
card are escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from string import Template

from skdpmf.privacy.statement import PrivacyStatement
from skdpmf.privacy.text import outward, release_tables

__all__ = ["card_page"]

_CONFIRMED = "The conditions above hold, as far as I could check them."
_Row = tuple[str, ...]


def card_page(
    model: str,
    statement: PrivacyStatement,
    curve: Iterable[tuple[str, str]],
    versions: Mapping[str, str],
    checksum: str,
) -> str:
    """Return the page.

    curve: delta and epsilon as they are to be printed; checksum: of the card as JSON.
    """
    is_private = statement.is_private
    short = [line.partition(": ")[::2] for line in statement.summary().splitlines()]
    conditions = statement.assumptions if is_private else ()
    if statement.condition and is_private:
        conditions = (f"The condition of the guarantee: {statement.condition}.", *conditions)
    releases = release_tables(statement.releases, statement._shares())
    sections = {
        "In short": _fields(short),
        "Guarantee": _fields(statement._fields()) + _curve(curve),
        "Conditions to check": _list(conditions, "checks"),
        "Releases": "".join([*map(_paragraph, statement._heading), *map(_table, releases)])
        or _paragraph("Nothing is released."),
        "Not covered": _list(statement.not_covered) if is_private else "",
        "Notes": _list(statement.notes),
    }
    return _PAGE.substitute(
        model=escape(" ".join(model.split())),
        epsilon=outward(statement.epsilon) if is_private else "infinite",
        delta=f"delta {statement.delta:.4g}" if is_private else "no privacy",
        sections="".join(
            f"<section><h2>{title}</h2>{body}</section>" for title, body in sections.items() if body
        ),
        confirmed=_paragraph(_CONFIRMED) if conditions else "",
        made=escape(", ".join(f"{name} {version}" for name, version in versions.items())),
        checksum=checksum,
    )


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _fields(fields: Iterable[tuple[str, str]]) -> str:
    """Return a list of names and texts; what is not met stands out."""
    rows = []
    for name, text in fields:
        alarm = name in ("NOT MET", "Warning") or text.startswith(("NOT MET", "nobody", "no pri"))
        mark = ' class="alarm"' if alarm else ""
        rows.append(f"<div{mark}><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>")
    return f"<dl>{''.join(rows)}</dl>"


def _list(texts: Iterable[str], kind: str = "") -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return items and f'<ul class="{kind}">{items}</ul>'


def _curve(pairs: Iterable[tuple[str, str]]) -> str:
    """Return the table of epsilon by delta, which lies on its side."""
    heads = zip(("delta", "epsilon"), zip(*pairs, strict=True), strict=True)
    rows = (
        f'<tr><th scope="row">{head}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        for head, cells in heads
    )
    return f'<table class="curve"><caption>All pairs hold at once.</caption>{"".join(rows)}</table>'


def _table(table: tuple[_Row, list[_Row]]) -> str:
    """Return a table of releases; a narrow screen shows the head's words beside each cell."""
    head, rows = table
    heads = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = []
    for name, *cells, statistic in rows:
        first = f'<th scope="row">{escape(name)}<small>{escape(statistic)}</small></th>'
        named = zip(head[1:], cells, strict=True)
        rest = "".join(f'<td data-head="{escape(by)}">{escape(cell)}</td>' for by, cell in named)
        body.append(f"<tr>{first}{rest}</tr>")
    return (
        f'<table class="releases"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table>"
    )


_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'">
<title>Privacy card: $model</title>
<style>
:root {
  color-scheme: light dark;
  --text: #1c2128; --soft: #57606a; --line: #d0d7de; --back: #fff; --tint: #eef3f8;
  --accent: #1d4f80; --alarm: #a1121f;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --text: #e6e9ed; --soft: #a9b3be; --line: #3a434d; --back: #14181d; --tint: #1d252e;
    --accent: #8fc1f0; --alarm: #ff9a9a;
  }
}
* { box-sizing: border-box; }
html { background: var(--back); color: var(--text); }
body {
  margin: 0 auto; padding: 2rem 1.25rem; max-width: 54rem;
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif;
  overflow-wrap: anywhere;
}
header {
  display: flex; flex-wrap: wrap; gap: 1rem 2rem; align-items: start;
  border-top: .4rem solid var(--accent); padding: 1.25rem 0 .75rem;
}
header div { flex: 1 1 18rem; }
h1 { margin: 0; font-size: 1.9rem; line-height: 1.2; }
h2 { margin: 2rem 0 .5rem; font-size: 1.15rem; color: var(--accent); }
.model { margin: .5rem 0 0; font: .85rem/1.5 ui-monospace, Menlo, Consolas, monospace; }
.level {
  margin: 0; padding: .6rem 1.1rem; text-align: center; color: var(--soft);
  background: var(--tint); border: 1px solid var(--line); border-radius: .6rem;
}
.level strong { display: block; font-size: 1.9rem; line-height: 1.2; color: var(--accent); }
p { margin: .5rem 0; }
dl { margin: 0; }
dl > div {
  display: grid; grid-template-columns: 9.5rem 1fr; gap: 0 1rem;
  padding: .45rem 0; border-top: 1px solid var(--line);
}
dl > div:last-child { border-bottom: 1px solid var(--line); }
dt { font-weight: 600; overflow-wrap: normal; }
dd { margin: 0; }
.alarm { color: var(--alarm); font-weight: 600; }
ul { margin: 0; padding-left: 1.2rem; }
li { margin: .35rem 0; }
.checks { list-style: none; padding: 0; }
.checks li { position: relative; padding-left: 2rem; margin: .6rem 0; }
.checks li::before {
  content: ""; position: absolute; left: 0; top: .2rem; width: 1.1rem; height: 1.1rem;
  border: 1.5px solid var(--soft); border-radius: .2rem;
}
table { width: 100%; border-collapse: collapse; font-size: .9rem; }
table + table, dl + table, p + table { margin-top: 1rem; }
caption { caption-side: bottom; padding: .3rem 0 0; text-align: left; color: var(--soft); }
th, td {
  padding: .4rem .5rem; border-bottom: 1px solid var(--line);
  text-align: right; vertical-align: top; font-variant-numeric: tabular-nums;
}
td { white-space: nowrap; }
th { text-align: left; }
th:first-child { padding-left: 0; }
tr > :last-child { padding-right: 0; }
thead th { color: var(--soft); border-bottom: 2px solid var(--line); }
thead th + th { text-align: right; overflow-wrap: normal; }
small { display: block; font-size: .85rem; font-weight: 400; color: var(--soft); }
.releases th:first-child { min-width: 13rem; }
.sign { display: grid; grid-template-columns: 2fr 1fr 2fr; gap: 1.5rem; margin-top: 3.5rem; }
.sign span { border-top: 1px solid var(--text); padding-top: .3rem; font-size: .9rem; }
footer { margin-top: 2rem; font-size: .85rem; color: var(--soft); }
code { font: .95em ui-monospace, Menlo, Consolas, monospace; }
@media screen and (max-width: 44rem) {
  dl > div { grid-template-columns: 1fr; }
  .sign { grid-template-columns: 1fr; gap: 3.5rem; }
  table, caption, tbody, tr, th, td { display: block; }
  thead { position: absolute; clip-path: inset(50%); }
  .releases tr {
    display: grid; grid-template-columns: 1fr 1fr; gap: 0 2rem;
    padding: .6rem 0; border-bottom: 1px solid var(--line);
  }
  .releases th, .releases td { border: 0; padding: .1rem 0; }
  .releases th { grid-column: 1 / -1; }
  .releases td { display: flex; justify-content: space-between; }
  .releases td::before { content: attr(data-head); color: var(--soft); }
  .curve tbody { display: flex; gap: 2rem; }
  .curve tr { flex: 1; }
  .curve th, .curve td { padding: .3rem 0; text-align: left; }
}
@page {
  margin: 18mm 17mm 20mm;
  @bottom-left { content: "Privacy card"; font: 8pt sans-serif; color: #57606a; }
  @bottom-right {
    content: counter(page) " / " counter(pages); font: 8pt sans-serif; color: #57606a;
  }
}
@media print {
  :root { color-scheme: light; font-size: 9.5pt; }
  body { padding: 0; max-width: none; line-height: 1.4; }
  h2 { margin-top: 1.5rem; break-after: avoid; }
  dl > div, li, tr, .sign, footer { break-inside: avoid; }
}
</style>
</head>
<body>
<header>
<div><h1>Privacy card</h1><p class="model">$model</p></div>
<p class="level"><strong>epsilon $epsilon</strong>$delta</p>
</header>
<main>
$sections
<section><h2>Checked</h2>
$confirmed
<p class="sign"><span>Name</span><span>Date</span><span>Signature</span></p>
</section>
</main>
<footer>
<p>Made with $made.</p>
<p>SHA-256 of this card as JSON: <code>$checksum</code></p>
</footer>
</body>
</html>
""")
