//! The pictures and tables of a tab: nothing of them is outside of the window, and no label covers another.

use super::text;
use crate::browser::pipe::Browser;
use anyhow::{Result, bail};

/// Lists the shown pictures, labels and tables that are cut.
const CUT: &str = "(() => {
  const shown = (one) => one.checkVisibility({visibilityProperty: true}) && one.getBoundingClientRect().width > 0;
  const of = (names) => [...document.querySelectorAll(names)].filter(shown);
  const outside = (one, around) => {
    const [box, edge] = [one.getBoundingClientRect(), around];
    return box.right > edge.right + 1 || box.left < edge.left - 1;
  };
  const page = {left: 0, right: document.documentElement.clientWidth};
  const cut = of('section svg, section canvas, section img').filter((one) => outside(one, page)).map((one) => one.tagName);
  for (const svg of of('section svg')) {
    const edge = svg.getBoundingClientRect();
    for (const label of svg.querySelectorAll('text')) if (outside(label, edge)) cut.push('label ' + label.textContent);
  }
  for (const box of of('section .scroll')) if (box.scrollWidth > box.clientWidth + 1) cut.push('table ' + box.textContent.slice(0, 40));
  return cut.join('; ');
})()";

/// Lists the labels of shown pictures that cover another: half a line of both, and more than a pixel and a half across.
const COVERED: &str = "(() => {
  const covered = [];
  for (const svg of document.querySelectorAll('section svg')) {
    if (!svg.checkVisibility({visibilityProperty: true})) continue;
    const labels = [...svg.querySelectorAll('text')].map((one) => [one.textContent, one.getBoundingClientRect()]);
    labels.forEach(([name, one], nth) => {
      for (const [other, two] of labels.slice(nth + 1)) {
        const across = Math.min(one.right, two.right) - Math.max(one.left, two.left);
        const down = Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top);
        if (across > 1.5 && down > Math.min(one.height, two.height) / 2) covered.push(`${name} and ${other}`);
      }
    });
  }
  return covered.join('; ');
})()";

/// Checks what a tab shows in a window of this width.
pub(super) fn check(browser: &mut Browser, tab: usize, width: u32) -> Result<()> {
    let cut = text(browser, CUT)?;
    if !cut.is_empty() {
        bail!("tab {tab} is cut in a window of {width}: {cut}");
    }
    let covered = text(browser, COVERED)?;
    if !covered.is_empty() {
        bail!("labels of tab {tab} cover each other in a window of {width}: {covered}");
    }
    Ok(())
}
