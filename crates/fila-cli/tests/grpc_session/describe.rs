//! Descriptors as `grpcurl describe` prints them: snippets of `.proto` files with the comments that belong to them.

use prost_reflect::{
    DescriptorPool, FieldDescriptor, FileDescriptor, Kind, MessageDescriptor, MethodDescriptor,
};

/// Returns what is printed for a symbol.
pub(crate) fn describe(pool: &DescriptorPool, symbol: &str) -> String {
    if let Some(found) = pool.get_message_by_name(symbol) {
        return format!("{symbol} is a message:\n{}", message(&found));
    }
    let methods = pool.services().flat_map(|service| {
        let methods: Vec<_> = service.methods().collect();
        methods
    });
    let found = methods.into_iter().find(|m| m.full_name() == symbol);
    let found = found.unwrap_or_else(|| panic!("{symbol} is neither a message nor a method"));
    format!("{symbol} is a method:\n{}", method(&found))
}

fn message(message: &MessageDescriptor) -> String {
    let file = message.parent_file();
    let mut text = comment(&file, message.path(), "");
    text += &format!("message {} {{\n", message.name());
    let mut fields: Vec<FieldDescriptor> = message.fields().collect();
    fields.sort_by_key(FieldDescriptor::number);
    for field in fields {
        text += &comment(&file, field.path(), "  ");
        let (label, kind) = (label(&field), kind(&field));
        text += &format!("  {label}{kind} {} = {};\n", field.name(), field.number());
    }
    text + "}\n"
}

fn method(method: &MethodDescriptor) -> String {
    let stream = |is_streaming| if is_streaming { "stream " } else { "" };
    comment(&method.parent_file(), method.path(), "")
        + &format!(
            "rpc {} ( {}.{} ) returns ( {}.{} );\n",
            method.name(),
            stream(method.is_client_streaming()),
            method.input().full_name(),
            stream(method.is_server_streaming()),
            method.output().full_name(),
        )
}

fn label(field: &FieldDescriptor) -> &'static str {
    let is_optional = field.field_descriptor_proto().proto3_optional();
    match (field.is_list(), is_optional) {
        (true, _) => "repeated ",
        (false, true) => "optional ",
        (false, false) => "",
    }
}

fn kind(field: &FieldDescriptor) -> String {
    match field.kind() {
        Kind::Message(entry) if entry.is_map_entry() => {
            let (key, value) = (entry.map_entry_key_field(), entry.map_entry_value_field());
            format!("map<{}, {}>", kind(&key), kind(&value))
        }
        Kind::Message(message) => format!(".{}", message.full_name()),
        Kind::Enum(kind) => format!(".{}", kind.full_name()),
        scalar => format!("{scalar:?}"),
    }
}

fn comment(file: &FileDescriptor, path: &[i32], indent: &str) -> String {
    let source = file.file_descriptor_proto().source_code_info.as_ref();
    let places = source.iter().flat_map(|source| &source.location);
    let place = places.into_iter().find(|place| place.path == path);
    let comment = place.map_or("", |place| place.leading_comments());
    let lines = comment.lines();
    lines.map(|line| format!("{indent}//{line}\n")).collect()
}
