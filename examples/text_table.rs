//! A plain-text table with centred cells:
//!
//! ```text
//!   Dev   | Port | Index
//! --------+------+-------
//!  mlx5_0 |  1   |   0
//! ```

use std::fmt;

/// Rows under a heading; each column is as wide as its widest cell.
#[derive(Clone, Debug)]
pub struct TextTable<const COLUMNS: usize> {
    heading: [&'static str; COLUMNS],
    rows: Vec<[String; COLUMNS]>,
}

impl<const COLUMNS: usize> TextTable<COLUMNS> {
    /// A table without rows.
    pub fn new(heading: [&'static str; COLUMNS]) -> Self {
        Self { heading, rows: Vec::new() }
    }

    /// Adds a row.
    pub fn push(&mut self, row: [String; COLUMNS]) {
        self.rows.push(row);
    }

    fn widths(&self) -> [usize; COLUMNS] {
        std::array::from_fn(|column| {
            let cells = self.rows.iter().map(|row| row[column].as_str());
            cells.chain([self.heading[column]]).map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
    }
}

impl<const COLUMNS: usize> fmt::Display for TextTable<COLUMNS> {
    /// All lines, without a newline after the last one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        let line = |cells: [&str; COLUMNS]| {
            let cells: Vec<String> =
                cells.iter().zip(widths).map(|(cell, width)| format!(" {cell:^width$} ")).collect();
            cells.join("|").trim_end().to_owned()
        };
        writeln!(f, "{}", line(self.heading))?;
        f.write_str(&widths.map(|width| "-".repeat(width + 2)).join("+"))?;
        for row in &self.rows {
            write!(f, "\n{}", line(row.each_ref().map(String::as_str)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_in_the_middle_of_columns_that_grow() {
        let mut table = TextTable::new(["Dev", "Port", "Netdev"]);
        assert_eq!(table.to_string(), " Dev | Port | Netdev\n-----+------+--------");
        table.push(["mlx5_0", "1", "enp8s0"].map(String::from));
        table.push(["rxe_0", "12", ""].map(String::from));
        let expected = [
            "  Dev   | Port | Netdev",
            "--------+------+--------",
            " mlx5_0 |  1   | enp8s0",
            " rxe_0  |  12  |",
        ];
        assert_eq!(table.to_string(), expected.join("\n"));
    }
}
