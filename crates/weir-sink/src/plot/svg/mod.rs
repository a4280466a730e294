//! Plots as SVG: one self-contained picture, or a part of a page.
//!
//! Colours are classes of one style sheet, so that a picture follows the reader's light or dark
//! scheme. Series have the colours of Okabe and Ito 2008, "Color universal design", which can be
//! distinguished with every kind of colour vision. The shades of heat maps differ in lightness.
//! Values are shown as tooltips.

mod canvas;
mod coefficients;
mod frame;
mod heat_map;
mod histogram;
mod lines;
mod points;
mod timeline;

pub use canvas::escaped;
pub use coefficients::{coefficient_graph, coefficient_matrix};
pub use heat_map::heat_map;
pub use histogram::histogram;
pub use lines::lines;
pub use points::points;
pub use timeline::timeline;

use canvas::number;

/// The style sheet of every picture; a page with several pictures includes it once.
pub const STYLE: &str = include_str!("style.css");

/// Elements, and the space they take in CSS pixels.
#[derive(Clone, Debug)]
pub struct Picture {
    title: String,
    width: f64,
    height: f64,
    elements: String,
}

impl Picture {
    /// A file of its own: with style and background.
    pub fn standalone(&self) -> String {
        let paper = "<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n";
        let size = format!(
            " width=\"{}\" height=\"{}\"",
            number(self.width),
            number(self.height)
        );
        self.element(&size, &format!("<style>\n{STYLE}</style>\n{paper}"))
    }

    /// A part of a page that has [`STYLE`] and a background.
    pub fn inline(&self) -> String {
        self.element("", "")
    }

    fn element(&self, size: &str, first: &str) -> String {
        let title = escaped(&self.title);
        let (width, height) = (number(self.width), number(self.height));
        format!(
            "<svg class=\"weir\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\"{size} \
             role=\"img\"><title>{title}</title>\n{first}{}</svg>\n",
            self.elements
        )
    }

    /// Combines several pictures: each to the right of the previous one, with `columns` per line.
    pub fn side_by_side(title: &str, pictures: &[Picture], columns: usize) -> Picture {
        let mut all = Picture {
            title: title.to_owned(),
            width: 0.0,
            height: 0.0,
            elements: String::new(),
        };
        for line in pictures.chunks(columns.max(1)) {
            let mut x = 0.0;
            for picture in line {
                all.elements += &format!(
                    "<g transform=\"translate({} {})\">\n{}</g>\n",
                    number(x),
                    number(all.height),
                    picture.elements
                );
                x += picture.width;
            }
            all.width = all.width.max(x);
            all.height += line.iter().map(|p| p.height).fold(0.0, f64::max);
        }
        all
    }
}
