//! The tabs of a page: one section at a time, and the bar stays in view.

use super::pictures;
use super::{SCREEN, WIDTHS, click_on, number, press, run, settle, size, text};
use crate::browser::pipe::Browser;
use anyhow::{Result, bail};

/// The most screens of a tab, at each of [`WIDTHS`].
const SCREENS_MAX: f64 = 5.0;
/// The colours of callers.
const COLOURS: f64 = 12.0;
/// Pixels from the top of the window in which the bars of tabs and contents are.
const BARS: f64 = 80.0;

/// Checks the tabs of a page, if it has any, and shows the one with `film`. Returns a description of the results.
pub(super) fn check(browser: &mut Browser, film: &str) -> Result<String> {
    let tabs = number(browser, "document.querySelectorAll('[role=tab]').length")? as usize;
    let mut most = 0.0f64;
    for width in WIDTHS {
        size(browser, width)?;
        for tab in 0..tabs {
            choose(browser, &format!("document.querySelectorAll('[role=tab]')[{tab}]"))?;
            in_view(browser, tab)?;
            let wide = number(browser, "document.documentElement.scrollWidth")?;
            if wide > f64::from(width) {
                bail!("tab {tab} is {wide} pixels wide in a window of {width}");
            }
            pictures::check(browser, tab, width)?;
            let screens = number(browser, "document.documentElement.scrollHeight")? / SCREEN;
            most = most.max(screens);
            if screens > SCREENS_MAX {
                bail!("tab {tab} has {screens:.1} screens in a window of {width}");
            }
        }
    }
    size(browser, 1120)?;
    if tabs == 0 {
        return Ok("no tabs".to_string());
    }
    // The keys: from the first tab to the last and back.
    choose(browser, "document.querySelector('[role=tab]')")?;
    for (key, code, wanted) in [("ArrowRight", 39, 1), ("End", 35, tabs - 1), ("ArrowRight", 39, 0)] {
        press(browser, key, code)?;
        let at = number(
            browser,
            "[...document.querySelectorAll('[role=tab]')].findIndex(tab => tab.ariaSelected === 'true')",
        )?;
        if at != wanted as f64 {
            bail!("the key {key} on the tabs goes to {at}, and not to {wanted}");
        }
    }
    choose(browser, &format!("document.querySelector(`[aria-controls=${{{film}.closest('section').id}}]`)"))?;
    // The colour of a caller is the same in each picture, as long as there is one for each.
    let colours = "[...document.querySelectorAll('.key button')].map(one => [one.textContent, one.firstChild.style.background])";
    let names = number(browser, &format!("new Set({colours}.map(one => one[0])).size"))?;
    if names <= COLOURS && number(browser, &format!("new Set({colours}.map(String)).size"))? > names {
        bail!("a caller has different colours in the pictures of a page");
    }
    Ok(format!("{tabs} tabs of at most {most:.1} screens"))
}

/// Clicks on a tab, and checks that its section alone is shown.
fn choose(browser: &mut Browser, tab: &str) -> Result<()> {
    run(browser, &format!("{tab}.scrollIntoView({{inline: 'center', block: 'nearest'}})"))?;
    click_on(browser, tab)?;
    settle(browser)?;
    let wanted = text(browser, &format!("{tab}.getAttribute('aria-controls')"))?;
    let shown = "[...document.querySelectorAll('section')].filter(one => one.clientHeight > 0).map(one => one.id).join()";
    let shown = text(browser, shown)?;
    if shown != wanted {
        bail!("the tab of {wanted} shows {shown:?}");
    }
    Ok(())
}

/// Checks that tabs and contents are at the top of the window, however far it is scrolled.
fn in_view(browser: &mut Browser, tab: usize) -> Result<()> {
    run(browser, "scrollTo(0, document.documentElement.scrollHeight / 2)")?;
    settle(browser)?;
    let bars =
        "[...document.querySelectorAll('.tabs, section.shown .toc')].map(one => one.getBoundingClientRect())";
    let out = format!("{bars}.filter(bar => bar.top < 0 || bar.bottom > {BARS}).length");
    if number(browser, "scrollY")? > BARS * 2.0 && number(browser, &out)? > 0.0 {
        bail!("the contents of tab {tab} do not stay in view");
    }
    Ok(())
}
