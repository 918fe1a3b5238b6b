"""Sources and sinks of the table: ModelProto, onnx_ir.Model, and files."""
