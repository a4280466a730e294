//! Nexmark: persons, auctions and bids of an auction site, and its queries q0 to q22.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use weir_testing::Scratch;

use crate::output::Cells;
use crate::{Expected, compare, row, run_script, seed, write_source};

/// The last instant: five days of 60 s.
const END: i64 = 300;

/// The length of an interval of the queries with windows.
const INTERVAL: i64 = 10;

/// A day of the queries with statistics.
const DAY: i64 = 60;

#[derive(Clone, Debug)]
struct Person {
    at: i64,
    id: i64,
    name: String,
    city: &'static str,
    state: &'static str,
}

#[derive(Clone, Debug)]
struct Auction {
    at: i64,
    id: i64,
    item: String,
    reserve: i64,
    expires: i64,
    seller: i64,
    category: i64,
}

#[derive(Clone, Debug)]
struct Bid {
    at: i64,
    id: i64,
    auction: i64,
    bidder: i64,
    price: i64,
    channel: &'static str,
    url: String,
    extra: &'static str,
}

/// Everything that happened.
struct Site {
    persons: Vec<Person>,
    auctions: Vec<Auction>,
    bids: Vec<Bid>,
    /// The bounded input of q13.
    side: Vec<(i64, &'static str)>,
}

impl Site {
    fn random(rng: &mut Rng) -> Site {
        let mut site = Site {
            persons: Vec::new(),
            auctions: Vec::new(),
            bids: Vec::new(),
            side: vec![(0, "zero"), (2, "two"), (3, "three"), (3, "drei")],
        };
        // All streams begin at once.
        for at in 1..=END {
            for kind in 0..rng.i64(0..6) + i64::from(at == 1) * 60 {
                match kind % 6 {
                    0 if rng.i64(0..3) == 0 || at == 1 => site.register(at, rng),
                    1 | 2 if rng.i64(0..4) == 0 || at == 1 => site.open(at, rng),
                    _ => site.bid(at, rng),
                }
            }
        }
        // The sources end at the same instant.
        site.register(END, rng);
        site.open(END, rng);
        site.bid(END, rng);
        site
    }

    fn register(&mut self, at: i64, rng: &mut Rng) {
        let id = self.persons.len() as i64;
        let cities = ["Portland", "Boise", "Phoenix", "Kent"];
        self.persons.push(Person {
            at,
            id,
            name: format!("p{id}"),
            city: cities[rng.usize(0..4)],
            state: ["OR", "ID", "CA", "AZ", "WA"][rng.usize(0..5)],
        });
    }

    fn open(&mut self, at: i64, rng: &mut Rng) {
        let id = self.auctions.len() as i64;
        // The seller may register later, or never.
        let seller = match rng.i64(0..3) {
            0 => self.persons.len() as i64 - 1,
            _ => rng.i64(0..self.persons.len() as i64 + 3),
        };
        self.auctions.push(Auction {
            at,
            id,
            item: format!("item{}", rng.i64(0..9)),
            reserve: rng.i64(0..500),
            expires: at + rng.i64(5..90),
            seller,
            category: rng.i64(9..13),
        });
    }

    fn bid(&mut self, at: i64, rng: &mut Rng) {
        let id = self.bids.len() as i64;
        let count = self.auctions.len() as i64;
        let channel = ["apple", "Google", "facebook", "baidu", "other"][rng.usize(0..5)];
        let query = match rng.i64(0..3) {
            0 => String::new(),
            1 => format!("?channel_id={}", rng.i64(0..99)),
            _ => format!("?q=1&channel_id={}&r=2", rng.i64(0..99)),
        };
        self.bids.push(Bid {
            at,
            id,
            // Recent auctions, and some that are not open yet.
            auction: (count - 6 + rng.i64(0..8)).max(0),
            bidder: rng.i64(0..12),
            price: rng.i64(1..40) * 25,
            channel,
            url: format!(
                "https://site/{}/x{}/{}{query}",
                rng.i64(0..3),
                rng.i64(0..3),
                id
            ),
            extra: ["cacc", "abc", "xyz", "c"][rng.usize(0..4)],
        });
    }

    fn bids(&self, at: i64) -> impl Iterator<Item = &Bid> {
        self.bids.iter().filter(move |bid| bid.at <= at)
    }

    /// The bids of the last complete interval of `size` before `at`, at a multiple of `slide`.
    fn window(&self, at: i64, size: i64, slide: i64) -> impl Iterator<Item = &Bid> {
        let end = at - at % slide;
        self.bids(end).filter(move |bid| bid.at > end - size)
    }

    fn auctions(&self, at: i64) -> impl Iterator<Item = &Auction> {
        self.auctions.iter().filter(move |auction| auction.at <= at)
    }

    fn now(&self, at: i64) -> impl Iterator<Item = &Bid> {
        self.bids.iter().filter(move |bid| bid.at == at)
    }

    /// The bids for an auction while it was open, the winning one first.
    fn valid(&self, auction: &Auction, at: i64) -> Vec<&Bid> {
        let open = auction.at..=auction.expires;
        let mut bids: Vec<&Bid> = self
            .bids(at)
            .filter(|bid| bid.auction == auction.id && open.contains(&bid.at))
            .collect();
        bids.sort_by_key(|bid| (-bid.price, bid.id));
        bids
    }

    fn winners(&self, at: i64) -> Vec<(&Auction, &Bid)> {
        let won = |auction| Some((auction, *self.valid(auction, at).first()?));
        self.auctions(at).filter_map(won).collect()
    }
}

fn mean(values: &[i64]) -> f64 {
    values.iter().sum::<i64>() as f64 / values.len() as f64
}

/// The rows of groups: the keys, and a function of the group's bids.
fn grouped<'a, K: Ord>(
    bids: impl Iterator<Item = &'a Bid>,
    key: impl Fn(&Bid) -> K,
    result: impl Fn(&K, &[&Bid]) -> Vec<String>,
) -> Cells {
    let mut groups: BTreeMap<K, Vec<&Bid>> = BTreeMap::new();
    for bid in bids {
        groups.entry(key(bid)).or_default().push(bid);
    }
    groups.iter().map(|(key, bids)| result(key, bids)).collect()
}

fn distinct<T: Ord>(bids: &[&Bid], value: impl Fn(&Bid) -> Option<T>) -> usize {
    let values: BTreeSet<T> = bids.iter().filter_map(|bid| value(bid)).collect();
    values.len()
}

fn number(bids: &[&Bid], condition: impl Fn(i64) -> bool) -> usize {
    bids.iter().filter(|bid| condition(bid.price)).count()
}

fn day(at: i64) -> i64 {
    at - at % DAY
}

/// The value of `channel_id` in a URL.
fn channel_id(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("channel_id=")?;
    Some(rest.split('&').next().unwrap_or(rest))
}

impl Site {
    /// q3: a pair is emitted when the later of the two arrives.
    fn local_items(&self, at: i64) -> Cells {
        let mut rows = Cells::new();
        for a in self.auctions(at).filter(|a| a.category == 10) {
            let sellers = self.persons.iter().filter(|p| p.id == a.seller);
            for p in sellers.filter(|p| ["OR", "ID", "CA"].contains(&p.state)) {
                if p.at.max(a.at) == at {
                    rows.push(row![p.name, p.city, p.state, a.id]);
                }
            }
        }
        rows
    }

    fn category_means(&self, at: i64) -> Cells {
        let mut prices: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
        for (auction, bid) in self.winners(at) {
            prices.entry(auction.category).or_default().push(bid.price);
        }
        let rows = prices.into_iter();
        rows.map(|(category, prices)| row![category, mean(&prices)])
            .collect()
    }

    fn hot_items(&self, at: i64) -> Cells {
        let counts = grouped(
            self.window(at, 10, 2),
            |b| b.auction,
            |a, bids| row![a, bids.len()],
        );
        let count = |row: &Vec<String>| -> usize { row[1].parse().expect("a count") };
        let most = counts.iter().map(count).max();
        counts
            .into_iter()
            .filter(|row| Some(count(row)) == most)
            .collect()
    }

    fn seller_means(&self, at: i64) -> Cells {
        let mut rows = Cells::new();
        let mut winners = self.winners(at);
        winners.sort_by_key(|(auction, bid)| (auction.seller, bid.at, auction.id));
        for (i, (auction, _)) in winners.iter().enumerate() {
            let before = winners[..=i]
                .iter()
                .filter(|(a, _)| a.seller == auction.seller);
            let prices: Vec<i64> = before.map(|(_, bid)| bid.price).collect();
            let last = &prices[prices.len().saturating_sub(11)..];
            rows.push(row![auction.seller, auction.id, mean(last)]);
        }
        rows
    }

    fn new_sellers(&self, at: i64) -> Cells {
        let end = at - at % INTERVAL;
        let recent = |at: i64| at > end - INTERVAL && at <= end;
        let sells = |p: &&Person| {
            let mut auctions = self.auctions.iter();
            auctions.any(|a| a.seller == p.id && recent(a.at))
        };
        let persons = self.persons.iter().filter(|p| recent(p.at)).filter(sells);
        persons.map(|p| row![p.id, p.name]).collect()
    }

    /// A user's bids since the last pause of ten seconds or more.
    fn sessions(&self, at: i64) -> Cells {
        let mut rows = Cells::new();
        for bidder in 0..12 {
            let times: Vec<i64> = self
                .bids(at)
                .filter(|b| b.bidder == bidder)
                .map(|b| b.at)
                .collect();
            let mut later = at;
            let mut count = 0;
            for time in times.iter().rev() {
                if later - time >= 10 {
                    break;
                }
                (later, count) = (*time, count + 1);
            }
            if count > 0 {
                rows.push(row![bidder, count]);
            }
        }
        rows
    }

    fn last_bids(&self, at: i64) -> Cells {
        grouped(
            self.bids(at),
            |b| (b.auction, b.bidder),
            |_, bids| {
                let b = bids.last().expect("a group has a bid");
                row![b.auction, b.bidder, b.price, b.at]
            },
        )
    }

    fn highest_bids(&self, at: i64) -> Cells {
        let mut rows = Cells::new();
        let mut places: BTreeMap<i64, i64> = BTreeMap::new();
        let mut bids: Vec<&Bid> = self.bids(at).collect();
        bids.sort_by_key(|bid| (-bid.price, bid.id));
        for b in bids {
            let place = places.entry(b.auction).or_default();
            *place += 1;
            if *place <= 10 {
                rows.push(row![b.auction, b.id, b.price, place]);
            }
        }
        rows
    }

    fn expanded(&self, at: i64) -> Cells {
        let mut rows = Cells::new();
        for b in self.bids(at) {
            for a in self
                .auctions(at)
                .filter(|a| a.id == b.auction && a.category == 10)
            {
                if a.at.max(b.at) == at {
                    rows.push(row![b.id, b.auction, b.price, a.item, a.seller]);
                }
            }
        }
        rows
    }

    fn channel_ids(&self, at: i64) -> Cells {
        let id = |b: &Bid| match b.channel.to_lowercase().as_str() {
            "apple" => Some("0".to_owned()),
            "google" => Some("1".to_owned()),
            "facebook" => Some("2".to_owned()),
            "baidu" => Some("3".to_owned()),
            _ => channel_id(&b.url).map(str::to_owned),
        };
        let rows = self
            .now(at)
            .filter_map(|b| Some(row![b.id, b.channel, id(b)?]));
        rows.collect()
    }

    fn days(&self, at: i64) -> Cells {
        grouped(
            self.bids(at),
            |b| day(b.at),
            |day, bids| {
                row![
                    day,
                    bids.len(),
                    number(bids, |price| price < 300),
                    number(bids, |price| (300..700).contains(&price)),
                    distinct(bids, |b| Some(b.bidder)),
                    distinct(bids, |b| (b.price < 300).then_some(b.bidder)),
                    distinct(bids, |b| Some(b.auction)),
                ]
            },
        )
    }

    fn channels(&self, at: i64) -> Cells {
        grouped(
            self.bids(at),
            |b| (b.channel, day(b.at)),
            |(channel, day), bids| {
                row![
                    channel,
                    day,
                    bids.iter().map(|b| b.at).max().unwrap_or_default(),
                    bids.len(),
                    number(bids, |price| price < 300),
                    distinct(bids, |b| Some(b.bidder)),
                    distinct(bids, |b| Some(b.auction)),
                ]
            },
        )
    }

    fn auction_days(&self, at: i64) -> Cells {
        grouped(
            self.bids(at),
            |b| (b.auction, day(b.at)),
            |(auction, day), bids| {
                let prices: Vec<i64> = bids.iter().map(|b| b.price).collect();
                row![
                    auction,
                    day,
                    bids.len(),
                    number(bids, |price| price >= 700),
                    prices.iter().min().unwrap_or(&0),
                    prices.iter().max().unwrap_or(&0),
                    mean(&prices),
                    prices.iter().sum::<i64>(),
                ]
            },
        )
    }

    fn calculated(&self, at: i64) -> Cells {
        let rows = self.now(at).filter_map(|b| {
            let price = 0.908 * b.price as f64;
            let time = match b.at % 24 {
                8..=18 => "day",
                0..=6 | 20.. => "night",
                _ => "other",
            };
            let letters = b.extra.matches('c').count();
            (price > 300.0 && price < 900.0).then(|| row![b.auction, price, time, letters])
        });
        rows.collect()
    }

    fn write(&self, scratch: &Scratch) {
        let persons = self.persons.iter();
        let persons = persons.map(|p| {
            (
                p.at,
                format!("{},{},{},{},{}", p.id, p.name, p.city, p.state, p.at),
            )
        });
        write_source(
            scratch,
            "person.dat",
            "i,c16,c16,c2,i",
            &persons.collect::<Vec<_>>(),
        );
        let line = |a: &Auction| {
            let Auction {
                at,
                id,
                item,
                reserve,
                expires,
                seller,
                category,
            } = a;
            (
                *at,
                format!("{id},{item},{reserve},{expires},{seller},{category},{at}"),
            )
        };
        let auctions: Vec<_> = self.auctions.iter().map(line).collect();
        write_source(scratch, "auction.dat", "i,c16,i,i,i,i,i", &auctions);
        let line = |b: &Bid| {
            let Bid {
                at,
                id,
                auction,
                bidder,
                price,
                channel,
                url,
                extra,
            } = b;
            (
                *at,
                format!("{id},{auction},{bidder},{price},{channel},{url},{extra},{at}"),
            )
        };
        let bids: Vec<_> = self.bids.iter().map(line).collect();
        write_source(scratch, "bid.dat", "i,i,i,i,c12,c64,c16,i", &bids);
        let side = self
            .side
            .iter()
            .map(|(key, value)| (1, format!("+,{key},{value}")));
        write_source(scratch, "side.dat", "i,c8", &side.collect::<Vec<_>>());
    }
}

/// What each query has to give.
fn expected(site: &Site) -> Vec<(&'static str, Expected<'_>)> {
    let relation = |name, rows: fn(&Site, i64) -> Cells| {
        (name, Expected::Relation(Box::new(move |at| rows(site, at))))
    };
    let stream = |name, rows: fn(&Site, i64) -> Cells| {
        (name, Expected::Stream(Box::new(move |at| rows(site, at))))
    };
    vec![
        stream("q0.out", |s, at| {
            s.now(at)
                .map(|b| row![b.auction, b.bidder, b.price, b.at])
                .collect()
        }),
        stream("q1.out", |s, at| {
            let rows = s.now(at);
            rows.map(|b| row![b.auction, b.bidder, 0.908 * b.price as f64, b.at])
                .collect()
        }),
        stream("q2.out", |s, at| {
            let bids = s.now(at).filter(|b| b.auction % 5 == 0);
            bids.map(|b| row![b.auction, b.price]).collect()
        }),
        stream("q3.out", Site::local_items),
        relation("q4.out", Site::category_means),
        relation("q5.out", Site::hot_items),
        relation("q6.out", Site::seller_means),
        relation("q7.out", |s, at| {
            let most = s.window(at, INTERVAL, INTERVAL).map(|b| b.price).max();
            let bids = s
                .window(at, INTERVAL, INTERVAL)
                .filter(|b| Some(b.price) == most);
            bids.map(|b| row![b.auction, b.price, b.bidder]).collect()
        }),
        relation("q8.out", Site::new_sellers),
        relation("q9.out", |s, at| {
            let winners = s.winners(at).into_iter();
            winners
                .map(|(a, b)| row![a.id, a.item, b.id, b.price])
                .collect()
        }),
        stream("q10.out", |s, at| {
            let tens = |at: i64| at - at % 10;
            let rows = s.now(at);
            rows.map(|b| row![b.auction, b.bidder, b.price, b.at, day(b.at), tens(b.at)])
                .collect()
        }),
        relation("q11.out", Site::sessions),
        relation("q12.out", |s, at| {
            let bids = s.window(at, INTERVAL, INTERVAL);
            grouped(bids, |b| b.bidder, |bidder, bids| row![bidder, bids.len()])
        }),
        stream("q13.out", |s, at| {
            let pairs = s
                .now(at)
                .flat_map(|b| s.side.iter().map(move |side| (b, side)));
            let joined = pairs.filter(|(b, (key, _))| b.auction % 7 == *key);
            joined
                .map(|(b, (_, value))| row![b.id, b.price, value])
                .collect()
        }),
        stream("q14.out", Site::calculated),
        relation("q15.out", Site::days),
        relation("q16.out", Site::channels),
        relation("q17.out", Site::auction_days),
        relation("q18.out", Site::last_bids),
        relation("q19.out", Site::highest_bids),
        stream("q20.out", Site::expanded),
        stream("q21.out", Site::channel_ids),
        stream("q22.out", |s, at| {
            let part = |b: &Bid, n: usize| b.url.split('/').nth(n).unwrap_or_default().to_owned();
            s.now(at)
                .map(|b| row![b.id, part(b, 3), part(b, 4), part(b, 5)])
                .collect()
        }),
    ]
}

#[test]
fn nexmark_has_the_results_of_its_evaluator() {
    let site = Site::random(&mut Rng::with_seed(seed()));
    let scratch = Scratch::new();
    site.write(&scratch);
    run_script(&scratch, "tests/nexmark/nexmark.cql");
    let expected = expected(&site);
    assert_eq!(expected.len(), 23, "q0 to q22");
    let differences = compare(&scratch, 1..=END, &expected);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
