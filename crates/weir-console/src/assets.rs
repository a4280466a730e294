//! The files of the page. They are in the binary; there is no directory to walk.

use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::api::ApiError;

/// A file of the page.
pub struct Asset {
    /// Its path.
    pub path: &'static str,
    /// Its media type.
    pub media_type: &'static str,
    /// Its content.
    pub bytes: &'static [u8],
}

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! asset {
    ($path:literal, $file:literal, $media_type:expr) => {
        Asset {
            path: $path,
            media_type: $media_type,
            bytes: include_bytes!(concat!("page/", $file)),
        }
    };
}

/// All files of the page.
pub static ASSETS: &[Asset] = &[
    asset!("/", "index.html", HTML),
    asset!("/style.css", "style.css", STYLE),
    asset!("/icon.svg", "icon.svg", "image/svg+xml"),
    asset!("/app.js", "app.js", SCRIPT),
    asset!("/arrow.js", "arrow.js", SCRIPT),
    asset!("/charts.js", "charts.js", SCRIPT),
    asset!("/coefficients.js", "coefficients.js", SCRIPT),
    asset!("/completion.js", "completion.js", SCRIPT),
    asset!("/elements.js", "elements.js", SCRIPT),
    asset!("/format.js", "format.js", SCRIPT),
    asset!("/heatmap.js", "heatmap.js", SCRIPT),
    asset!("/json-table.js", "json-table.js", SCRIPT),
    asset!("/limit.js", "limit.js", SCRIPT),
    asset!("/lines.js", "lines.js", SCRIPT),
    asset!("/panel.js", "panel.js", SCRIPT),
    asset!("/polled.js", "polled.js", SCRIPT),
    asset!("/push.js", "push.js", SCRIPT),
    asset!("/selection.js", "selection.js", SCRIPT),
    asset!("/source.js", "source.js", SCRIPT),
    asset!("/table.js", "table.js", SCRIPT),
    asset!("/page-alerts.js", "page-alerts.js", SCRIPT),
    asset!("/page-alerts-fleet.js", "page-alerts-fleet.js", SCRIPT),
    asset!("/page-compare.js", "page-compare.js", SCRIPT),
    asset!("/page-correlations.js", "page-correlations.js", SCRIPT),
    asset!("/page-disk.js", "page-disk.js", SCRIPT),
    asset!("/page-fleet.js", "page-fleet.js", SCRIPT),
    asset!("/page-overview.js", "page-overview.js", SCRIPT),
    asset!("/page-queries.js", "page-queries.js", SCRIPT),
    asset!("/page-query.js", "page-query.js", SCRIPT),
    asset!("/page-recordings.js", "page-recordings.js", SCRIPT),
];

/// Serves a file of the page.
pub async fn serve(request: Request) -> Response {
    let Some(asset) = ASSETS.iter().find(|a| a.path == request.uri().path()) else {
        let message = "no such page; / is the console, /api/v1/openapi.json describes the API";
        return ApiError::new(StatusCode::NOT_FOUND, message).into_response();
    };
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "only GET is supported")
            .into_response();
    }
    let tag = asset.tag();
    let known = request.headers().get(IF_NONE_MATCH);
    // The browser asks each time, so that the page is that of the program.
    let headers = [
        (CONTENT_TYPE, asset.media_type.to_owned()),
        (CACHE_CONTROL, "no-cache".to_owned()),
        (ETAG, tag.clone()),
    ];
    match known.is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
        true => (StatusCode::NOT_MODIFIED, headers).into_response(),
        false => (headers, asset.bytes).into_response(),
    }
}

impl Asset {
    /// The entity tag: a hash of the content (FNV-1a).
    fn tag(&self) -> String {
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = self.bytes.iter().fold(0xcbf2_9ce4_8422_2325, step);
        format!("\"{hash:016x}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit of the page as a whole, in bytes.
    const PAGE_BYTES_MAX: usize = 200_000;

    fn texts() -> impl Iterator<Item = (&'static str, &'static str)> {
        let text = |asset: &Asset| (asset.path, std::str::from_utf8(asset.bytes).unwrap());
        ASSETS.iter().map(text)
    }

    #[test]
    fn the_page_is_small() {
        let bytes: usize = ASSETS.iter().map(|asset| asset.bytes.len()).sum();
        assert!(bytes < PAGE_BYTES_MAX, "{bytes} bytes");
    }

    #[test]
    fn every_file_is_served() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/page");
        let files = std::fs::read_dir(folder).unwrap().count();
        assert_eq!(files, ASSETS.len());
    }

    #[test]
    fn no_script_makes_markup_or_code_of_a_text() {
        let unsafe_names = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "DOMParser",
            "createContextualFragment",
            "eval(",
            "new Function",
            "srcdoc",
            "javascript:",
        ];
        for (path, text) in texts() {
            for name in unsafe_names {
                assert!(!text.contains(name), "{path} uses {name}");
            }
        }
    }

    #[test]
    fn no_file_names_another_origin() {
        for (path, text) in texts() {
            let text = text.replace("http://www.w3.org/2000/svg", "");
            for scheme in ["http://", "https://", "ws://", "wss://", "\"//", "'//"] {
                assert!(!text.contains(scheme), "{path} contains {scheme}");
            }
        }
    }
}
