//! [`Exposition`]: the response format, by content negotiation (RFC 9110, section 12.5.1).

use super::{Family, protobuf, text};

/// A format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposition {
    /// Prometheus' protocol buffers.
    Protobuf,
    /// OpenMetrics text 1.0.
    OpenMetrics,
    /// Prometheus' text 0.0.4.
    Text,
}

/// All, the richest first.
pub const EXPOSITIONS: [Exposition; 3] = [
    Exposition::Protobuf,
    Exposition::OpenMetrics,
    Exposition::Text,
];

impl Exposition {
    /// The format with the highest preference in the header `Accept`, of equal ones the richest;
    /// text if none matches.
    pub fn accepted(accept: &str) -> Exposition {
        let mut best = (Exposition::Text, 0.0);
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default().to_ascii_lowercase();
            let parameters: Vec<(String, &str)> = parts
                .filter_map(|p| p.split_once('='))
                .map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim()))
                .collect();
            let value = |name: &str| {
                let found = parameters.iter().find(|(n, _)| n == name);
                found.map(|(_, value)| value.trim_matches('"'))
            };
            let quality = value("q").map_or(Some(1.0), |q| q.parse::<f32>().ok());
            let quality = quality.filter(|q| (0.0..=1.0).contains(q)).unwrap_or(0.0);
            let version = |known: &[&str]| value("version").is_none_or(|v| known.contains(&v));
            let proto = |known: &str| value("proto").is_none_or(|v| v == known);
            let delimited = value("encoding").is_none_or(|v| v == "delimited");
            let format = match media.as_str() {
                "application/vnd.google.protobuf"
                    if delimited && proto("io.prometheus.client.MetricFamily") =>
                {
                    Exposition::Protobuf
                }
                "application/openmetrics-text" if version(&["1.0.0", "0.0.1"]) => {
                    Exposition::OpenMetrics
                }
                "text/plain" if version(&["0.0.4", "1.0.0"]) => Exposition::Text,
                _ => continue,
            };
            let rank = |f: Exposition| EXPOSITIONS.iter().position(|e| *e == f);
            let richer = quality == best.1 && rank(format) < rank(best.0);
            if quality > best.1 || (quality > 0.0 && richer) {
                best = (format, quality);
            }
        }
        best.0
    }

    /// Its name, as a label value.
    pub fn name(self) -> &'static str {
        match self {
            Exposition::Protobuf => "protobuf",
            Exposition::OpenMetrics => "openmetrics",
            Exposition::Text => "text",
        }
    }

    /// The header `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Exposition::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
            Exposition::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Exposition::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// The metrics in this format.
    pub fn encode(self, families: &[Family]) -> Vec<u8> {
        match self {
            Exposition::Protobuf => protobuf::encode(families),
            Exposition::OpenMetrics => text::openmetrics(families).into_bytes(),
            Exposition::Text => text::prometheus(families).into_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preferred_format_is_selected() {
        use Exposition::{OpenMetrics, Protobuf, Text};
        let prometheus = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,\
            application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let cases = [
            (prometheus, Protobuf),
            (
                "application/openmetrics-text; version=1.0.0; charset=utf-8,text/plain;q=0.5",
                OpenMetrics,
            ),
            ("text/plain, application/openmetrics-text", OpenMetrics),
            ("text/plain;version=0.0.4", Text),
            (
                "application/openmetrics-text;version=9.0.0, text/html",
                Text,
            ),
            ("application/openmetrics-text;q=0", Text),
            ("application/vnd.google.protobuf;encoding=text", Text),
            ("*/*", Text),
            ("", Text),
            (";;q=,=,", Text),
        ];
        for (accept, expected) in cases {
            assert_eq!(Exposition::accepted(accept), expected, "{accept}");
        }
    }
}
