//! Fields by the kernel's type information (BTF): the arguments of a function or a tracepoint, and
//! paths from them, such as `rq.q.disk.major`.

use std::ffi::OsStr;

use libbpf_rs::btf::types::{
    Array, Composite, Enum, Enum64, Func, FuncProto, Int, IntEncoding, MemberAttr, Ptr, Typedef,
};
use libbpf_rs::btf::{Btf, BtfKind, BtfType, TypeId};

/// A value that a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The argument, from 0.
    pub argument: usize,
    /// The offsets of the pointers on the way.
    pub pointers: Vec<usize>,
    /// The value.
    pub leaf: Leaf,
}

/// A value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaf {
    /// The argument or pointer itself, a number of this size.
    Itself {
        /// Its size.
        bytes: usize,
        /// Negative numbers are possible.
        is_signed: bool,
    },
    /// A number at an offset.
    Number {
        /// The offset.
        offset: usize,
        /// Its size.
        bytes: usize,
        /// Negative numbers are possible.
        is_signed: bool,
    },
    /// Some bits of a number at an offset.
    Bits {
        /// The offset of the number.
        offset: usize,
        /// Its size.
        bytes: usize,
        /// The lowest bit.
        first: usize,
        /// How many bits.
        bits: usize,
        /// Negative numbers are possible.
        is_signed: bool,
    },
    /// A text of at most so many bytes at an offset.
    Text {
        /// The offset.
        offset: usize,
        /// Its maximum size.
        bytes: usize,
    },
    /// The address of a text at an offset; without one, the argument or pointer itself.
    TextAddress {
        /// The offset.
        offset: Option<usize>,
    },
}

/// An argument of a function or a tracepoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Its name; `arg0` if the type information has none.
    pub name: String,
    /// Its type in C.
    pub ty: String,
}

/// A function or tracepoint with its arguments.
pub struct Prototype<'a> {
    btf: &'a Btf<'static>,
    arguments: Vec<(String, TypeId)>,
    /// The type of the result of a function.
    returns: Option<TypeId>,
}

/// The type of a member, its offset, and for a bit field the first bit and the number of bits.
type Member<'a> = (BtfType<'a>, usize, Option<(usize, usize)>);

impl<'a> Prototype<'a> {
    /// The tracepoint called `name`.
    pub fn of_tracepoint(btf: &'a Btf<'static>, name: &str) -> Option<Prototype<'a>> {
        let declared = btf.type_by_name::<Typedef<'_>>(&format!("btf_trace_{name}"))?;
        let pointer = declared.next_type()?;
        let declared = FuncProto::try_from(pointer.next_type()?).ok()?;
        let types: Vec<TypeId> = declared.iter().skip(1).map(|a| a.ty).collect();
        // The type of the tracepoint has no names; the function that calls its probes has them.
        let caller = btf.type_by_name::<Func<'_>>(&format!("__traceiter_{name}"));
        let names = caller.and_then(|function| parameters(*function));
        let named = names.filter(|names| names.len() == types.len() + 1);
        let named = named.map(|names| names.into_iter().skip(1).map(|(name, _)| name));
        let named: Vec<String> = named.into_iter().flatten().collect();
        let argument = |(at, ty): (usize, TypeId)| match named.get(at) {
            Some(name) if !name.is_empty() => (name.clone(), ty),
            _ => (format!("arg{at}"), ty),
        };
        Some(Prototype {
            btf,
            arguments: types.into_iter().enumerate().map(argument).collect(),
            returns: None,
        })
    }

    /// The function called `name`.
    pub fn of_function(btf: &'a Btf<'static>, name: &str) -> Option<Prototype<'a>> {
        let function = btf.type_by_name::<Func<'_>>(name)?;
        let arguments = parameters(*function)?;
        let declared = FuncProto::try_from(function.next_type()?).ok()?;
        let returns = declared.next_type().map(|ty| ty.type_id());
        Some(Prototype {
            btf,
            arguments,
            returns,
        })
    }

    /// Its arguments.
    pub fn arguments(&self) -> Vec<Argument> {
        let argument = |(name, ty): &(String, TypeId)| Argument {
            name: name.clone(),
            ty: self
                .btf
                .type_by_id::<BtfType<'_>>(*ty)
                .map_or_else(String::new, c_type),
        };
        self.arguments.iter().map(argument).collect()
    }

    /// Whether it is a function that returns a value.
    pub fn has_result(&self) -> bool {
        self.returns.is_some()
    }

    /// The value that `path` leads to. `retval` is the result, which follows the arguments.
    ///
    /// # Errors
    /// Why there is none, and the names that are possible in its place.
    pub fn place(&self, path: &str) -> Result<Place, (String, Vec<String>)> {
        let mut names = path.split('.');
        let (first, mut index) = indexed(names.next().unwrap_or_default());
        let mut arguments = self.arguments.iter();
        let argument = arguments.position(|(name, _)| name == first);
        let (argument, ty) = match (argument, self.returns) {
            (Some(at), _) => (at, self.arguments[at].1),
            (None, Some(returns)) if first == "retval" => (self.arguments.len(), returns),
            _ => {
                let names = self.arguments.iter().map(|(name, _)| name.clone());
                return Err((format!("it has no argument `{first}`"), names.collect()));
            }
        };
        let mut ty: BtfType<'_> = self.by_id(ty)?;
        let mut pointers: Vec<usize> = Vec::new();
        // The offset of the value in the structure that the last pointer refers to; none for the
        // argument itself.
        let mut offset: Option<usize> = None;
        let mut bits = None;
        for name in names {
            ty = ty.skip_mods_and_typedefs();
            if let Ok(pointer) = Ptr::try_from(ty) {
                if let Some(offset) = offset.replace(0) {
                    pointers.push(offset);
                }
                ty = self.target(pointer)?.skip_mods_and_typedefs();
            }
            let (name, next) = indexed(name);
            let found = Composite::try_from(ty)
                .ok()
                .and_then(|s| self.member(s, name));
            let Some((member, at, of_bits)) = found else {
                return Err(self.no_member(ty, name));
            };
            (ty, bits, index) = (member, of_bits, next);
            offset = Some(offset.unwrap_or(0) + at);
            if let Some(index) = index.take() {
                let (element, size) = self.element(ty, index).map_err(|why| (why, Vec::new()))?;
                (ty, offset) = (element, offset.map(|offset| offset + index * size));
            }
        }
        if index.is_some() {
            return Err((format!("`{first}` is no array in a structure"), Vec::new()));
        }
        let leaf = self.leaf(ty.skip_mods_and_typedefs(), offset, bits);
        let leaf = leaf.ok_or_else(|| {
            let message = format!("it is {}, which is neither a number nor a text", c_type(ty));
            (message, self.members(ty))
        })?;
        Ok(Place {
            argument,
            pointers,
            leaf,
        })
    }

    fn by_id(&self, id: TypeId) -> Result<BtfType<'a>, (String, Vec<String>)> {
        let found = self.btf.type_by_id(id);
        found.ok_or_else(|| ("its type is not known".into(), Vec::new()))
    }

    fn target(&self, pointer: Ptr<'a>) -> Result<BtfType<'a>, (String, Vec<String>)> {
        let target = (*pointer).next_type();
        target.ok_or_else(|| ("it is an address without a type".into(), Vec::new()))
    }

    /// The type of a member, its offset and its bits, also of an anonymous structure in this one.
    fn member(&self, structure: Composite<'a>, name: &str) -> Option<Member<'a>> {
        let members: Vec<_> = structure.iter().map(|m| (m.name, m.ty, m.attr)).collect();
        members.into_iter().find_map(|(own, ty, attr)| {
            let (offset, bits) = match attr {
                MemberAttr::Normal { offset } => (offset as usize, None),
                MemberAttr::BitField { size, offset } => (offset as usize, Some(usize::from(size))),
            };
            let ty: BtfType<'a> = self.btf.type_by_id(ty)?;
            match own {
                Some(own) if !own.is_empty() => {
                    let bits = bits.map(|bits| (offset, bits));
                    let at = if bits.is_some() { 0 } else { offset / 8 };
                    (own == name).then_some((ty, at, bits))
                }
                _ => {
                    let inner = Composite::try_from(ty.skip_mods_and_typedefs()).ok()?;
                    let (ty, at, bits) = self.member(inner, name)?;
                    match bits {
                        Some((first, bits)) => Some((ty, at, Some((first + offset, bits)))),
                        None => Some((ty, at + offset / 8, None)),
                    }
                }
            }
        })
    }

    /// The names of a structure's members.
    fn members(&self, ty: BtfType<'_>) -> Vec<String> {
        let mut ty = ty.skip_mods_and_typedefs();
        if let Some(target) = Ptr::try_from(ty).ok().and_then(|p| (*p).next_type()) {
            ty = target.skip_mods_and_typedefs();
        }
        let Ok(structure) = Composite::try_from(ty) else {
            return Vec::new();
        };
        let names = structure.iter().filter_map(|m| m.name?.to_str());
        let names = names.filter(|name| !name.is_empty());
        names.map(str::to_owned).collect()
    }

    fn no_member(&self, ty: BtfType<'_>, name: &str) -> (String, Vec<String>) {
        (
            format!("{} has no field `{name}`", c_type(ty)),
            self.members(ty),
        )
    }

    /// The type and the size of an array's elements.
    fn element(&self, ty: BtfType<'a>, index: usize) -> Result<(BtfType<'a>, usize), String> {
        let ty = ty.skip_mods_and_typedefs();
        let array = Array::try_from(ty).map_err(|_| "it is no array".to_owned())?;
        let element: Option<BtfType<'a>> = self.btf.type_by_id(array.ty());
        let element = element.ok_or("its type is not known")?;
        let size = size_of(element).ok_or("the size of its elements is not known")?;
        match index < array.capacity() {
            true => Ok((element, size)),
            false => Err(format!("the array has {} elements", array.capacity())),
        }
    }

    fn leaf(
        &self,
        ty: BtfType<'_>,
        offset: Option<usize>,
        bits: Option<(usize, usize)>,
    ) -> Option<Leaf> {
        if let Ok(pointer) = Ptr::try_from(ty) {
            let target = (*pointer).next_type().map(|t| t.skip_mods_and_typedefs());
            return Some(match target.is_some_and(is_char) {
                true => Leaf::TextAddress { offset },
                false => number(offset, 8, false),
            });
        }
        if let Ok(array) = Array::try_from(ty) {
            let element: BtfType<'_> = self.btf.type_by_id(array.ty())?;
            let is_text = is_char(element.skip_mods_and_typedefs()) && array.capacity() > 0;
            let offset = offset?;
            let bytes = array.capacity();
            return is_text.then_some(Leaf::Text { offset, bytes });
        }
        let (bytes, is_signed) = integer(ty)?;
        let Some((first, bits)) = bits else {
            return Some(number(offset, bytes, is_signed));
        };
        // A bit field is in the numbers of its type.
        let start = offset? + first / 8 / bytes * bytes;
        let first = first % (8 * bytes);
        (first + bits <= 8 * bytes).then_some(Leaf::Bits {
            offset: start,
            bytes,
            first,
            bits,
            is_signed,
        })
    }
}

fn number(offset: Option<usize>, bytes: usize, is_signed: bool) -> Leaf {
    match offset {
        None => Leaf::Itself { bytes, is_signed },
        Some(offset) => Leaf::Number {
            offset,
            bytes,
            is_signed,
        },
    }
}

/// The names and the types of a function's parameters.
fn parameters(function: BtfType<'_>) -> Option<Vec<(String, TypeId)>> {
    let declared = FuncProto::try_from(function.next_type()?).ok()?;
    let name = |name: Option<&OsStr>| name.and_then(OsStr::to_str).unwrap_or_default().to_owned();
    Some(declared.iter().map(|p| (name(p.name), p.ty)).collect())
}

/// `args[1]` as a name and an index.
fn indexed(name: &str) -> (&str, Option<usize>) {
    let split = name.strip_suffix(']').and_then(|rest| rest.split_once('['));
    match split.and_then(|(name, index)| Some((name, index.parse().ok()?))) {
        Some((name, index)) => (name, Some(index)),
        None => (name, None),
    }
}

/// The size of an integer, and whether it is signed.
fn integer(ty: BtfType<'_>) -> Option<(usize, bool)> {
    if let Ok(int) = Int::try_from(ty) {
        let bytes = usize::from(int.bits).div_ceil(8);
        let is_signed = matches!(int.encoding, IntEncoding::Signed);
        return [1, 2, 4, 8].contains(&bytes).then_some((bytes, is_signed));
    }
    match (Enum::try_from(ty), Enum64::try_from(ty)) {
        (Ok(enumeration), _) => Some((4, enumeration.is_signed())),
        (_, Ok(enumeration)) => Some((8, enumeration.is_signed())),
        _ => None,
    }
}

fn is_char(ty: BtfType<'_>) -> bool {
    ty.name().is_some_and(|name| name == "char") && ty.kind() == BtfKind::Int
}

/// The size of a type.
fn size_of(ty: BtfType<'_>) -> Option<usize> {
    let ty = ty.skip_mods_and_typedefs();
    if Ptr::try_from(ty).is_ok() {
        return Some(8);
    }
    if let Ok(structure) = Composite::try_from(ty) {
        use libbpf_rs::btf::HasSize;
        return Some(structure.size());
    }
    integer(ty).map(|(bytes, _)| bytes)
}

/// A type as in C.
fn c_type(ty: BtfType<'_>) -> String {
    let name = |ty: BtfType<'_>| ty.name().map(|name| name.to_string_lossy().into_owned());
    let inner = |ty: BtfType<'_>| ty.next_type().map_or_else(|| "void".to_owned(), c_type);
    match ty.kind() {
        BtfKind::Ptr => match inner(ty) {
            pointer if pointer.ends_with('*') => format!("{pointer}*"),
            target => format!("{target} *"),
        },
        BtfKind::Const => format!("const {}", inner(ty)),
        BtfKind::Struct => format!("struct {}", name(ty).unwrap_or_default()),
        BtfKind::Union => format!("union {}", name(ty).unwrap_or_default()),
        BtfKind::Enum | BtfKind::Enum64 => format!("enum {}", name(ty).unwrap_or_default()),
        BtfKind::FuncProto => "function".into(),
        BtfKind::Array => match Array::try_from(ty) {
            Ok(array) => format!("{}[{}]", c_type(array.contained_type()), array.capacity()),
            Err(_) => "array".into(),
        },
        _ => name(ty).unwrap_or_else(|| inner(ty)),
    }
}
