pub fn print(_rows: &[super::Row], _extra: &super::Extra, _cpus: usize) {}
