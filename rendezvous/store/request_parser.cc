// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/request_parser.h"

#include <algorithm>
#include <cstring>

namespace ddprun::store {
namespace {

template <typename Integer>
Integer load(const char* from) {
  Integer value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Reads the fields of a request that scan() found complete.
class Reader {
 public:
  explicit Reader(const char* next) : next_(next) {}

  template <typename Integer>
  Integer integer() {
    const Integer value = load<Integer>(next_);
    next_ += sizeof value;
    return value;
  }

  std::string_view string() {
    const auto size = integer<std::uint64_t>();
    const std::string_view text(next_, size);
    next_ += size;
    return text;
  }

 private:
  const char* next_;
};

void decode(const char* bytes, Request* request) {
  request->opcode = static_cast<Opcode>(*bytes);
  request->key = request->value = request->expected = {};
  request->number = 0;
  request->word = 0;
  request->keys.clear();
  request->values.clear();
  Reader reader(bytes + 1);
  for (const char* field = kRequestFields[static_cast<unsigned char>(*bytes)]; *field; ++field) {
    switch (*field) {
      case 'm':
      case 'w':
        request->word = reader.integer<std::uint32_t>();
        break;
      case 'i':
        request->number = reader.integer<std::int64_t>();
        break;
      case 'k':
        request->key = reader.string();
        break;
      case 'v':
        request->value = reader.string();
        break;
      case 'x':
        request->expected = reader.string();
        break;
      default: {
        const auto count = reader.integer<std::uint64_t>();
        for (std::uint64_t i = 0; i < count; ++i) {
          request->keys.push_back(reader.string());
          if (*field == 'e') request->values.push_back(reader.string());
        }
      }
    }
  }
}

}  // namespace

ParseStatus RequestParser::parse(std::string_view bytes, Request* request,
                                 std::uint64_t most_items) {
  if (!error_.empty()) return ParseStatus::kMalformed;
  if (const Step step = scan(bytes); step != Step::kDone) {
    return step == Step::kNeedMore ? ParseStatus::kNeedMore : ParseStatus::kMalformed;
  }
  if (items_ > most_items) return ParseStatus::kLarge;
  decode(bytes.data(), request);
  request_bytes_ = offset_;
  offset_ = 0;
  field_ = 0;
  items_ = 0;
  in_request_ = false;
  needed_bytes_ = 1;
  validated_ = true;
  return ParseStatus::kRequest;
}

RequestParser::Step RequestParser::scan(std::string_view bytes) {
  if (!in_request_) {
    const Step step = scan_opcode(bytes);
    if (step != Step::kDone) return step;
  }
  const char* fields = kRequestFields[static_cast<unsigned char>(bytes.front())];
  for (; fields[field_]; ++field_) {
    const Step step = scan_field(fields[field_], bytes);
    if (step != Step::kDone) return step;
  }
  return Step::kDone;
}

RequestParser::Step RequestParser::scan_field(char field, std::string_view bytes) {
  switch (field) {
    case 'm':
      return scan_magic(bytes);
    case 'w':
      return scan_fixed(bytes, sizeof(std::uint32_t));
    case 'i':
      return scan_fixed(bytes, sizeof(std::int64_t));
    case 'k':
      return scan_string(bytes, true);
    case 'v':
    case 'x':
      return scan_string(bytes, false);
    case 'l':
      return scan_count(bytes, 1);
    default:
      return scan_count(bytes, 2);
  }
}

RequestParser::Step RequestParser::scan_opcode(std::string_view bytes) {
  if (bytes.empty()) return Step::kNeedMore;
  const auto opcode = static_cast<unsigned char>(bytes.front());
  if (!validated_ && opcode != static_cast<unsigned char>(Opcode::kValidate)) {
    return malformed("the first byte is " + std::to_string(opcode) +
                     ", not a c10d store handshake: is this a store client?");
  }
  if (opcode >= kNumOpcodes) return malformed("unknown operation " + std::to_string(opcode));
  if (validated_ && opcode == static_cast<unsigned char>(Opcode::kValidate)) {
    return malformed("a second handshake");
  }
  in_request_ = true;
  offset_ = 1;
  return Step::kDone;
}

// Refuses at the first wrong byte, so that a client of another protocol isn't left waiting.
RequestParser::Step RequestParser::scan_magic(std::string_view bytes) {
  const char* magic = reinterpret_cast<const char*>(&kValidateMagic);
  const std::size_t have = std::min(bytes.size() - offset_, sizeof kValidateMagic);
  if (std::memcmp(bytes.data() + offset_, magic, have) != 0) {
    return malformed("wrong magic number in the handshake");
  }
  return scan_fixed(bytes, sizeof kValidateMagic);
}

RequestParser::Step RequestParser::scan_fixed(std::string_view bytes, std::size_t size) {
  if (bytes.size() - offset_ < size) {
    needed_bytes_ = offset_ + size;
    return Step::kNeedMore;
  }
  offset_ += size;
  return Step::kDone;
}

RequestParser::Step RequestParser::scan_string(std::string_view bytes, bool is_key) {
  constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);
  const std::size_t have = bytes.size() - offset_;
  if (have < kLengthBytes) {
    needed_bytes_ = offset_ + kLengthBytes;
    return Step::kNeedMore;
  }
  const auto length = load<std::uint64_t>(bytes.data() + offset_);
  const std::size_t limit = is_key ? limits_->max_key_bytes : limits_->max_value_bytes;
  if (length > limit) {
    return malformed(std::string(opcode_name(static_cast<Opcode>(bytes.front()))) + " with a " +
                     (is_key ? "key" : "value") + " of " + std::to_string(length) +
                     " bytes; the limit is " + std::to_string(limit));
  }
  if (offset_ + kLengthBytes + length > limits_->max_request_bytes) {
    return malformed(
        std::string(opcode_name(static_cast<Opcode>(bytes.front()))) +
        " of more bytes than the limit: " + std::to_string(limits_->max_request_bytes));
  }
  if (have - kLengthBytes < length) {
    needed_bytes_ = offset_ + kLengthBytes + length;
    return Step::kNeedMore;
  }
  offset_ += kLengthBytes + length;
  return Step::kDone;
}

RequestParser::Step RequestParser::scan_count(std::string_view bytes,
                                              std::size_t strings_per_item) {
  if (!in_list_) {
    const std::size_t at = offset_;
    const Step step = scan_fixed(bytes, sizeof(std::uint64_t));
    if (step != Step::kDone) return step;
    const auto count = load<std::uint64_t>(bytes.data() + at);
    if (count > limits_->max_keys_per_request) {
      return malformed(std::string(opcode_name(static_cast<Opcode>(bytes.front()))) + " of " +
                       std::to_string(count) + " keys; the limit is " +
                       std::to_string(limits_->max_keys_per_request));
    }
    items_ = count;
    strings_left_ = count * strings_per_item;
    in_list_ = true;
  }
  for (; strings_left_ > 0; --strings_left_) {
    const bool is_key = strings_per_item == 1 || strings_left_ % 2 == 0;
    const Step step = scan_string(bytes, is_key);
    if (step != Step::kDone) return step;
  }
  in_list_ = false;
  return Step::kDone;
}

RequestParser::Step RequestParser::malformed(std::string message) {
  error_ = std::move(message);
  return Step::kMalformed;
}

}  // namespace ddprun::store
