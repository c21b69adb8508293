//! Looks into a finished BPF object: size, stack, and that nothing in it can panic.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use object::{
    Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionIndex, SectionKind, SymbolIndex, SymbolKind,
};

/// The verifier's limit for the frames of one call chain together.
pub const STACK_LIMIT: u64 = 512;
const INSTRUCTION: u64 = 8;
const CALL: u8 = 0x85;
const LOAD_IMM64: u8 = 0x18;
const FRAME_POINTER: u8 = 10;

/// What the build prints of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Instructions of 8 bytes, of all programs and what they call.
    pub instructions: u64,
    /// Bytes of stack of the deepest call chain, each frame rounded up as the verifier does.
    pub stack: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} instructions, stack {} of {STACK_LIMIT} bytes",
            self.instructions, self.stack
        )
    }
}

/// Refuses an object that the kernel would, for a reason that can be read here.
pub fn inspect(data: &[u8]) -> Result<Report, String> {
    let file =
        object::File::parse(data).map_err(|error| format!("the BPF object cannot be read: {error}"))?;
    refuse_panics(&file)?;
    let functions = functions(&file)?;
    if functions.is_empty() {
        return Err("the BPF object has no program in it".into());
    }
    let mut deepest = 0;
    let mut reached = BTreeSet::new();
    for (start, _) in functions.iter().filter(|(_, function)| function.entry) {
        deepest = deepest.max(chain(&functions, *start, 0, &mut reached)?);
    }
    if deepest > STACK_LIMIT {
        return Err(format!(
            "the BPF object needs {deepest} bytes of stack in one call chain, the kernel gives {STACK_LIMIT}"
        ));
    }
    // Only what a program reaches is loaded; the linker leaves memcpy and its like in the object in any case.
    let instructions = reached
        .iter()
        .filter_map(|place| functions.get(place))
        .map(|f| f.instructions)
        .sum();
    Ok(Report {
        instructions,
        stack: deepest,
    })
}

/// A path that can panic keeps a cold static function alive, and such an object does not load.
fn refuse_panics(file: &object::File<'_>) -> Result<(), String> {
    for section in file.sections() {
        let name = section.name().unwrap_or_default();
        if name.starts_with(".text.unlikely") && section.size() > 0 {
            return Err(format!(
                "the BPF object can panic: it has a section {name}; {}",
                panics_in(file)
            ));
        }
    }
    for symbol in file.symbols() {
        let name = symbol.name().unwrap_or_default();
        if name.contains("panic") && symbol.kind() != SymbolKind::File {
            return Err(format!("the BPF object can panic: it has the symbol {name}"));
        }
        if symbol.is_undefined() && !name.is_empty() {
            return Err(format!("the BPF object refers to {name}, which nothing defines"));
        }
    }
    Ok(())
}

fn panics_in(file: &object::File<'_>) -> String {
    let names: Vec<_> = file
        .symbols()
        .filter_map(|symbol| symbol.name().ok())
        .filter(|name| name.contains("panic") || name.contains("fail"))
        .collect();
    format!(
        "symbols: {}",
        if names.is_empty() {
            "none named".into()
        } else {
            names.join(", ")
        }
    )
}

type Place = (usize, u64);

#[derive(Default)]
struct Function {
    name: String,
    /// A program, not a function that programs call.
    entry: bool,
    instructions: u64,
    frame: u64,
    calls: Vec<Place>,
}

fn functions(file: &object::File<'_>) -> Result<BTreeMap<Place, Function>, String> {
    let mut found = BTreeMap::new();
    for section in file
        .sections()
        .filter(|section| section.kind() == SectionKind::Text)
    {
        let data = section.data().map_err(|error| error.to_string())?;
        let targets = relocated(file, &section);
        let mut starts: Vec<(u64, String)> = file
            .symbols()
            .filter(|symbol| {
                symbol.kind() == SymbolKind::Text && symbol.section_index() == Some(section.index())
            })
            .map(|symbol| (symbol.address(), symbol.name().unwrap_or("?").to_owned()))
            .collect();
        starts.sort();
        starts.dedup_by_key(|(start, _)| *start);
        for (index, (start, name)) in starts.iter().enumerate() {
            let end = starts.get(index + 1).map_or(section.size(), |(next, _)| *next);
            let entry = section.name() != Ok(".text");
            let code = data.get(*start as usize..end as usize).unwrap_or_default();
            let mut function = Function {
                name: name.clone(),
                entry,
                ..Function::default()
            };
            scan(&mut function, code, (section.index(), *start), &targets);
            found.insert((section.index().0, *start), function);
        }
    }
    Ok(found)
}

/// Where the section's relocated instructions lead, if to code: offset → (section, address of the symbol).
fn relocated(file: &object::File<'_>, section: &object::Section<'_, '_>) -> BTreeMap<u64, Place> {
    let place = |index: SymbolIndex| {
        let symbol = file.symbol_by_index(index).ok()?;
        Some((symbol.section_index()?.0, symbol.address()))
    };
    section
        .relocations()
        .filter_map(|(offset, relocation)| match relocation.target() {
            RelocationTarget::Symbol(index) => Some((offset, place(index)?)),
            _ => None,
        })
        .collect()
}

fn scan(function: &mut Function, code: &[u8], at: (SectionIndex, u64), targets: &BTreeMap<u64, Place>) {
    let (section, start) = at;
    function.instructions = code.len() as u64 / INSTRUCTION;
    // Registers that hold the frame pointer until they are moved to a place in the frame.
    let mut copies = [false; 11];
    for (index, word) in code.chunks_exact(INSTRUCTION as usize).enumerate() {
        let offset = start + index as u64 * INSTRUCTION;
        let (op, dst, src) = (word[0], word[1] & 0xf, word[1] >> 4);
        let off = i64::from(i16::from_le_bytes([word[2], word[3]]));
        let imm = i64::from(i32::from_le_bytes([word[4], word[5], word[6], word[7]]));
        let loads = op & 7 == 1 && src == FRAME_POINTER;
        let stores = matches!(op & 7, 2 | 3) && dst == FRAME_POINTER;
        if loads || stores {
            function.frame = function.frame.max(off.min(0).unsigned_abs());
        }
        match op {
            0x07 if copies.get(usize::from(dst)) == Some(&true) => {
                function.frame = function.frame.max(imm.min(0).unsigned_abs());
                copies[usize::from(dst)] = false;
            }
            _ if matches!(op & 7, 0 | 1 | 4 | 7) && usize::from(dst) < copies.len() => {
                copies[usize::from(dst)] = op == 0xbf && src == FRAME_POINTER;
            }
            _ => {}
        }
        match op {
            CALL if src == 1 => function.calls.push(match targets.get(&offset) {
                // A section symbol carries the rest of the address in the immediate.
                Some((section, base)) => (*section, base + ((imm + 1).max(0) as u64) * INSTRUCTION),
                None => (
                    section.0,
                    offset.wrapping_add_signed((imm + 1) * INSTRUCTION as i64),
                ),
            }),
            // The address of a function, to be called back by a helper.
            LOAD_IMM64 => function.calls.extend(targets.get(&offset).copied()),
            _ => {}
        }
    }
}

/// Bytes of stack from `start` down its deepest chain of calls.
fn chain(
    functions: &BTreeMap<Place, Function>,
    start: Place,
    depth: u32,
    reached: &mut BTreeSet<Place>,
) -> Result<u64, String> {
    let Some(function) = functions.get(&start) else {
        return Ok(0);
    };
    if depth > 8 {
        return Err(format!(
            "{} is called through more than 8 frames, the kernel's limit",
            function.name
        ));
    }
    reached.insert(start);
    let mut below = 0;
    for call in &function.calls {
        below = below.max(chain(functions, *call, depth + 1, reached)?);
    }
    Ok(function.frame.max(1).next_multiple_of(32) + below)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scanned(code: &[[u8; 8]], at: u64) -> Function {
        let mut function = Function {
            entry: at == 0,
            ..Function::default()
        };
        scan(
            &mut function,
            &code.concat(),
            (SectionIndex(1), at),
            &BTreeMap::new(),
        );
        function
    }

    const EXIT: [u8; 8] = [0x95, 0, 0, 0, 0, 0, 0, 0];
    /// `*(u64 *)(r10 - 40) = r1`
    const STORE: [u8; 8] = [0x7b, 0x1a, 0xd8, 0xff, 0, 0, 0, 0];
    /// `r2 = r10`, `r2 += -72`
    const POINT: [[u8; 8]; 2] = [
        [0xbf, 0xa2, 0, 0, 0, 0, 0, 0],
        [0x07, 2, 0, 0, 0xb8, 0xff, 0xff, 0xff],
    ];

    #[test]
    fn frames_are_as_deep_as_their_lowest_access() {
        assert_eq!(scanned(&[EXIT], 0).frame, 0);
        assert_eq!(scanned(&[STORE, EXIT], 0).frame, 40);
        assert_eq!(scanned(&[POINT[0], POINT[1], STORE, EXIT], 0).frame, 72);
        // A register that has been loaded with something else points nowhere.
        let load = [0xb7, 2, 0, 0, 0, 0, 0, 0];
        assert_eq!(scanned(&[POINT[0], load, POINT[1], EXIT], 0).frame, 0);
    }

    #[test]
    fn a_chain_adds_its_frames() {
        // Calls two instructions further, behind its own exit.
        let call = [CALL, 0x10, 0, 0, 1, 0, 0, 0];
        let mut functions = BTreeMap::new();
        functions.insert((1, 0), scanned(&[call, EXIT], 0));
        functions.insert((1, 16), scanned(&[STORE, EXIT], 16));
        functions.insert((1, 32), scanned(&[EXIT], 32));
        let mut reached = BTreeSet::new();
        assert_eq!(chain(&functions, (1, 0), 0, &mut reached), Ok(32 + 64));
        assert_eq!(reached.len(), 2, "what nobody calls is not counted");
    }

    #[test]
    fn recursion_is_refused() {
        let call = [CALL, 0x10, 0, 0, 0xff, 0xff, 0xff, 0xff];
        let functions = BTreeMap::from([((1, 0), scanned(&[call, EXIT], 0))]);
        assert!(chain(&functions, (1, 0), 0, &mut BTreeSet::new()).is_err());
    }

    #[test]
    fn what_is_no_object_is_refused() {
        assert!(inspect(b"not an object").is_err());
    }
}
