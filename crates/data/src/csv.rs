//! Quoted CSV, the format of GPQA: cells may contain commas, line breaks and doubled quotes.

use super::{DatasetProblem, FilePosition};

/// One row, and the line it starts on, counted from 1.
#[derive(Debug, PartialEq)]
pub(super) struct CsvRow {
    pub(super) line: usize,
    pub(super) cells: Vec<String>,
}

/// Iterator over the rows of a table. Empty lines are skipped; it ends after the first error.
pub(super) struct CsvRows<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> CsvRows<'a> {
    /// The rows of `text`, which starts after `skipped` lines of the file.
    pub(super) fn new(text: &'a str, skipped: usize) -> Self {
        CsvRows { rest: text, line: skipped + 1 }
    }

    /// The next cell, and whether another cell follows in the row.
    fn cell(&mut self) -> Result<(String, bool), DatasetProblem> {
        let cell = match self.rest.strip_prefix('"') {
            Some(rest) => self.quoted(rest)?,
            None => {
                let end = self.rest.find([',', '\n']).unwrap_or(self.rest.len());
                self.take(end).trim_end_matches('\r').to_owned()
            }
        };
        if let Some(rest) = self.rest.strip_prefix(',') {
            self.rest = rest;
            return Ok((cell, true));
        }
        let end = self.rest.strip_prefix('\r').unwrap_or(self.rest);
        match end.strip_prefix('\n') {
            Some(rest) => {
                self.rest = rest;
                self.line += 1;
            }
            None if end.is_empty() => self.rest = end,
            None => return Err(self.flaw("text after a closing quote")),
        }
        Ok((cell, false))
    }

    /// The quoted cell whose opening quote precedes `rest`.
    fn quoted(&mut self, rest: &'a str) -> Result<String, DatasetProblem> {
        let mut cell = String::new();
        self.rest = rest;
        loop {
            let Some(quote) = self.rest.find('"') else {
                return Err(self.flaw("unterminated quoted cell"));
            };
            cell.push_str(self.take(quote));
            self.rest = &self.rest[1..];
            match self.rest.strip_prefix('"') {
                Some(rest) => self.rest = rest,
                None => break,
            }
            cell.push('"');
        }
        self.line += cell.matches('\n').count();
        Ok(cell)
    }

    fn take(&mut self, end: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    fn flaw(&mut self, reason: &str) -> DatasetProblem {
        self.rest = "";
        DatasetProblem::Syntax { place: FilePosition::Line(self.line), reason: reason.to_owned() }
    }
}

impl Iterator for CsvRows<'_> {
    type Item = Result<CsvRow, DatasetProblem>;

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(rest) = self.rest.strip_prefix("\r\n").or(self.rest.strip_prefix('\n')) {
            self.rest = rest;
            self.line += 1;
        }
        if self.rest.is_empty() {
            return None;
        }
        let line = self.line;
        let mut cells = Vec::new();
        loop {
            match self.cell() {
                Ok((cell, more)) => {
                    cells.push(cell);
                    if !more {
                        return Some(Ok(CsvRow { line, cells }));
                    }
                }
                Err(flaw) => return Some(Err(flaw)),
            }
        }
    }
}
