//! The shapes of a picture: for a page of full width, and for a telephone.

/// A shape. The style of the page shows one of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// As wide as the page.
    Broad,
    /// As wide as a window of 420 pixels has room for.
    Slim,
}

impl Shape {
    /// Returns the width of a picture in a frame, in CSS pixels.
    pub(crate) fn width(self) -> f64 {
        match self {
            Self::Broad => 960.0,
            Self::Slim => 366.0,
        }
    }
}

/// Returns a picture in both shapes.
pub(crate) fn both(draw: impl Fn(Shape) -> String) -> String {
    format!(
        "<div class=\"broad\">{}</div><div class=\"slim\">{}</div>",
        draw(Shape::Broad),
        draw(Shape::Slim)
    )
}
