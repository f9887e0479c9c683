//! The time that a run took, by table and in sum.

use crate::result::{PhaseSeconds, RowTiming, RunPhase};

/// The time of one table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TableTime {
    /// The table; `all` for the sum.
    pub(crate) table: String,
    /// Rows that were measured.
    pub(crate) rows: usize,
    /// What they took.
    pub(crate) took: PhaseSeconds,
    /// What they were expected to take, in seconds.
    pub(crate) expected_s: f64,
}

/// The headings of the columns.
pub(crate) const HEAD: [&str; 9] = [
    "table", "rows", "networks", "starting", "warm-up", "work", "stopping", "all", "expected",
];

impl TableTime {
    fn new(table: &str) -> Self {
        Self {
            table: table.to_owned(),
            rows: 0,
            took: PhaseSeconds::default(),
            expected_s: 0.0,
        }
    }

    fn add(&mut self, timing: &RowTiming) {
        self.rows += 1;
        self.took.add_all(&timing.took);
        self.expected_s += timing.expected.sum();
    }

    /// The cells below [`HEAD`], without the table's name.
    pub(crate) fn cells(&self) -> Vec<String> {
        let seconds = |seconds: f64| format!("{seconds:.1} s");
        let mut cells = vec![self.rows.to_string()];
        cells.extend(RunPhase::ALL.map(|part| seconds(self.took.of(part))));
        cells.extend([self.took.sum(), self.expected_s].map(seconds));
        cells
    }
}

/// A line for each table in the order in which they were measured first, and one for all; none where the
/// folder has no timings.
pub(crate) fn by_table(timings: &[RowTiming]) -> Vec<TableTime> {
    let mut tables: Vec<TableTime> = Vec::new();
    let mut all = TableTime::new("all");
    for timing in timings {
        all.add(timing);
        match tables.iter_mut().find(|took| took.table == timing.table) {
            Some(took) => took.add(timing),
            None => {
                let mut took = TableTime::new(&timing.table);
                took.add(timing);
                tables.push(took);
            }
        }
    }
    if !tables.is_empty() {
        tables.push(all);
    }
    tables
}

/// A warning of processes that had to be killed.
pub(crate) fn warning(timings: &[RowTiming]) -> Option<String> {
    let killed: u32 = timings.iter().map(|timing| timing.killed).sum();
    (killed > 0).then(|| {
        format!(
            "{killed} processes did not end by themselves and were killed: each took some seconds"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(table: &str, work_s: f64, killed: u32) -> RowTiming {
        let spent = |work_s| PhaseSeconds {
            work_s,
            start_s: 0.5,
            ..PhaseSeconds::default()
        };
        RowTiming {
            suite: "coordination".into(),
            table: table.into(),
            row: "10 agents".into(),
            network: "loopback".into(),
            took: spent(work_s),
            expected: spent(1.0),
            killed,
        }
    }

    #[test]
    fn rows_of_a_table_are_added_up_and_all_of_them_at_the_end() {
        let timings = [
            timing("Q1", 1.0, 0),
            timing("Q2", 2.0, 1),
            timing("Q1", 4.0, 0),
        ];
        let took = by_table(&timings);
        let names: Vec<&str> = took.iter().map(|took| took.table.as_str()).collect();
        assert_eq!(names, ["Q1", "Q2", "all"]);
        assert_eq!(
            took[0].cells(),
            [
                "2", "0.0 s", "1.0 s", "0.0 s", "5.0 s", "0.0 s", "6.0 s", "3.0 s"
            ]
        );
        assert_eq!(took[2].took.sum(), 8.5);
        assert_eq!(took[0].cells().len() + 1, HEAD.len());
        assert!(warning(&timings).is_some_and(|text| text.starts_with("1 ")));
        assert_eq!(by_table(&[]), []);
        assert_eq!(warning(&timings[..1]), None);
    }
}
