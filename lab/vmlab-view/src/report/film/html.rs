//! A film as a section of a page: picture, slider, legend, chosen moments, and the largest holders.

use super::super::section::Section;
use super::{Film, Moment, encode, strip};
use std::fmt::Write;
use va_base::PAGE_SIZE;
use vmlab_base::chart::escape;
use vmlab_base::text::{bytes, counted, grouped};

/// Rows of the table of holders.
const HOLDERS_SHOWN: usize = 12;

/// Writes a film, or a picture if it has one moment, in about `bytes_max` bytes.
pub(in crate::report) fn write(section: &mut Section, film: Film, bytes_max: usize) {
    let all = film.moments.len();
    let (json, film) = encode(film, bytes_max);
    let Some(shown) = film.moments.get(film.opens()) else {
        section.html.push_str("<p class=\"dim note\">No area was allocated: there is nothing to draw.</p>");
        return;
    };
    let moving = film.moments.len() > 1;
    section.heading(if moving { "The address space as a film" } else { "The address space" });
    let html = &mut section.html;
    html.push_str(if film.linked {
        "<div class=\"film\" data-film data-linked>"
    } else {
        "<div class=\"film\" data-film>"
    });
    legend(html, &film);
    if moving {
        let (end, opens) = (film.moments.len() - 1, film.opens());
        // Writing to a String cannot fail, here and below.
        let _ = write!(
            html,
            "<div class=\"filmbar\"><button type=\"button\" class=\"play\" aria-label=\"Play the film\">▶ Play</button>\
             <input type=\"range\" min=\"0\" max=\"{end}\" value=\"{opens}\" step=\"1\" aria-label=\"Moment of the trace\">\
             <output class=\"when\">{}</output></div>",
            escape(&when(&film, shown))
        );
    }
    let _ = write!(
        html,
        "<canvas class=\"stage\" role=\"img\" tabindex=\"0\" aria-label=\"{0}\">{0}</canvas>\
         <p class=\"probe\" role=\"status\">Point at an area to see what it is; a click lights up its caller.{1} + and -, and the wheel with \
         Ctrl, zoom; a drag moves; 0 shows everything.</p>",
        escape(&what(shown)),
        if moving { " Arrow keys move by one moment, Page keys by ten, space plays." } else { "" }
    );
    thumbnails(html, &film, moving);
    caption(html, &film, all);
    holders(html, &film);
    let _ = write!(html, "<script type=\"application/json\">{json}</script></div>");
}

/// `event 1,200 of 5,790 · 12.345 s`.
fn when(film: &Film, moment: &Moment) -> String {
    format!("event {} of {}{}", grouped(moment.event as u64), grouped(film.events as u64), time(moment))
}

/// ` · 12.345 s`, or nothing if the time is unknown.
fn time(moment: &Moment) -> String {
    moment.time_ns.map_or(String::new(), |ns| format!(" · {:.3} s", ns as f64 / 1e9))
}

/// Formats pages as bytes. Partial pages at the ends of the space count as whole, so the product may saturate.
fn size(pages: u64) -> String {
    bytes(pages.saturating_mul(PAGE_SIZE))
}

/// Describes a moment in words.
fn what(moment: &Moment) -> String {
    let [busy, lazy, pooled] = moment.pages.map(size);
    format!("{busy} busy, {lazy} lazy, {pooled} pooled, in {}", counted(moment.count as u64, "area"))
}

fn legend(html: &mut String, film: &Film) {
    html.push_str("<div class=\"key\">");
    let colours = &film.colours;
    for (at, (colour, holder)) in colours.iter().zip(&film.holders).enumerate() {
        let name = escape(&holder.name);
        let _ = write!(
            html,
            "<button type=\"button\" data-who=\"{at}\"><i style=\"background:{colour}\"></i>{name}</button>"
        );
    }
    let mut swatch = |class: &str, text: &str| {
        let _ = write!(html, "<span><i class=\"{class}\"></i>{text}</span>");
    };
    let others = &film.holders[colours.len()..];
    match others {
        [] => {}
        [other] => swatch("other", &escape(&other.name)),
        _ => swatch("other", "others"),
    }
    if film.moments.iter().any(|moment| moment.pages[1] > 0) {
        swatch("lazy", "lazy: freed, not reusable before a purge");
    }
    if film.pooled {
        let policy = if film.linked { "pooled, under this policy" } else { "pooled, under Linux's policy" };
        swatch("pooled", policy);
    }
    swatch("hole", "free");
    html.push_str("</div>");
}

fn thumbnails(html: &mut String, film: &Film, moving: bool) {
    html.push_str("<div class=\"strip\">");
    for at in strip::chosen(film) {
        let moment = &film.moments[at];
        let Some(uri) = strip::png_uri(film, moment) else { continue };
        let label = if moving {
            format!("event {}{}", grouped(moment.event as u64), time(moment))
        } else {
            String::new()
        };
        let _ = write!(
            html,
            "<button type=\"button\" data-at=\"{at}\"><img alt=\"{}\" src=\"{uri}\"><span>{label}</span></button>",
            escape(&what(moment))
        );
    }
    html.push_str("</div>");
}

fn caption(html: &mut String, film: &Film, all: usize) {
    let row = size(film.row_pages());
    let mut text = format!(
        "Addresses upwards from left to right and from row to row, {row} a row, the same scale everywhere; a part begins a \
         row, and what lies between two parts is folded away. So are rows that are free at every moment, two or more."
    );
    let moments = film.moments.len();
    if moments > 1 {
        if film.events > moments {
            let _ = write!(
                text,
                " The film has {} of {}, evenly: what came and went between two of them is not seen.",
                counted(moments as u64, "moment"),
                counted(film.events as u64, "event")
            );
        }
        if moments < all {
            let _ = write!(text, " It was thinned from {all} moments, for its size.");
        }
        text.push_str(if film.linked {
            " Busy and lazy areas are those of the policy, and the task is named that asked for an area."
        } else {
            " Busy and lazy areas are the kernel's, as its events show. The caller of an area is from vmallocinfo, if it was there in \
             the end; else the task is named that asked for it."
        });
    }
    if film.pooled {
        text.push_str(
            " No event shows pools: what is pooled is so in a space that replays the trace with the policy.",
        );
    }
    if film.together_pages > 1 {
        let _ = write!(
            text,
            " Areas of less than {} are drawn together, as what most of them are.",
            size(film.together_pages)
        );
    }
    let _ = write!(
        html,
        "<details><summary>How to read the picture</summary><p class=\"dim note\">{text}</p></details>"
    );
}

fn holders(html: &mut String, film: &Film) {
    if film.holders.is_empty() {
        return;
    }
    let moving = film.moments.len() > 1;
    html.push_str("<details class=\"who\"><summary>Who holds the most</summary><div class=\"scroll\"><table><thead><tr><th>holder</th>");
    if moving {
        html.push_str("<th>most at a moment</th><th>at the end</th><th>areas at the end</th>");
    } else {
        html.push_str("<th>busy</th><th>areas</th>");
    }
    html.push_str("</tr></thead><tbody>");
    let colours = &film.colours;
    for (at, holder) in film.holders.iter().take(HOLDERS_SHOWN).enumerate() {
        let name = escape(&holder.name);
        let _ = match colours.get(at) {
            Some(colour) => {
                write!(html, "<tr data-who=\"{at}\"><th><i style=\"background:{colour}\"></i>{name}</th>")
            }
            None => write!(html, "<tr><th><i class=\"other\"></i>{name}</th>"),
        };
        if moving {
            let _ = write!(html, "<td>{}</td>", size(holder.peak_pages));
        }
        let _ =
            write!(html, "<td>{}</td><td>{}</td></tr>", size(holder.end_pages), grouped(holder.end_areas));
    }
    let _ = write!(html, "</tbody></table></div>");
    if film.holders.len() > HOLDERS_SHOWN {
        let _ = write!(
            html,
            "<p class=\"dim note\">{} more hold less.</p>",
            grouped((film.holders.len() - HOLDERS_SHOWN) as u64)
        );
    }
    html.push_str("</details>");
}
