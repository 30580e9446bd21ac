// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/checkpoint/safetensors.h"

#include <cstring>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace ddprun;
using test::contains;
using test::error_of;

namespace {

const std::string kFloats(24, 'f'), kLongs(8, 'l');

std::string whole_file() {
  const std::vector<TensorBytes> tensors{
      {.name = "fc.weight", .dtype = "F32", .shape = {2, 3}, .bytes = kFloats},
      {.name = "none", .dtype = "F32", .shape = {0, 3}, .bytes = {}},
      {.name = "count", .dtype = "I64", .shape = {}, .bytes = kLongs}};
  return encode_header({{"step", "120"}, {"note", "a\nb"}}, tensors) + kFloats + kLongs;
}

// A file with this header, followed by `data`.
std::string file_with(const std::string& header, const std::string& data = "") {
  const std::uint64_t length = header.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + header + data;
}

std::string reason(const std::string& file) {
  const Error error = error_of([&] { decode_safetensors(file); });
  CHECK(error.code() == ErrorCode::kProtocol);
  return error.what();
}

}  // namespace

TEST_CASE("safetensors: a written file is read") {
  const std::string file = whole_file();
  const Safetensors state = decode_safetensors(file);
  CHECK(state.has_checksum);
  CHECK(state.metadata == Metadata{{"note", "a\nb"}, {"step", "120"}});
  REQUIRE(state.tensors.size() == 3);
  const auto find = [&](const std::string& name) {
    for (const TensorBytes& each : state.tensors) {
      if (each.name == name) return each;
    }
    return TensorBytes{};
  };
  CHECK(find("fc.weight").bytes == kFloats);
  CHECK(find("fc.weight").shape == std::vector<std::int64_t>{2, 3});
  CHECK(find("fc.weight").dtype == "F32");
  CHECK(find("count").bytes == kLongs);
  CHECK(find("count").shape.empty());
  CHECK(find("none").bytes.empty());
}

TEST_CASE("safetensors: the elements begin at a multiple of 8 bytes, as safetensors has it") {
  CHECK((whole_file().size() - kFloats.size() - kLongs.size()) % 8 == 0);
}

TEST_CASE("safetensors: a state that could not be read again is told before it is written") {
  const std::string bad = "\xff";
  CHECK(encoding_problem({{"note", "ä"}}, {"a", "b", "ä"}) == "");
  CHECK(encoding_problem({}, {"a", "b", "a"}) == "two tensors are named a");
  CHECK(encoding_problem({}, {"a", ""}) == "a tensor has no name");
  CHECK(encoding_problem({}, {"__metadata__"}) == "no tensor can be named __metadata__");
  CHECK(contains(encoding_problem({}, {"a", bad}), "is no UTF-8"));
  CHECK(contains(encoding_problem({{"k", bad}}, {}), "of key \"k\" are no UTF-8"));
  CHECK(contains(encoding_problem({{bad, "v"}}, {}), "are no UTF-8"));
  CHECK(encoding_problem({{"crc32", "1"}}, {}) ==
        "the key crc32 of the metadata is the format's own");
}

TEST_CASE("safetensors: cut off anywhere it is no whole file") {
  const std::string file = whole_file();
  for (std::size_t size = 0; size < file.size(); ++size) {
    CHECK_FALSE(reason(file.substr(0, size)).empty());
  }
  CHECK(
      contains(reason(file.substr(0, file.size() - 1)), "it is cut off: 32 bytes of tensors, 31"));
  CHECK(contains(reason(file + "x"), "belong to no tensor"));
}

TEST_CASE("safetensors: any changed byte of the elements or the metadata is found") {
  const std::string file = whole_file();
  for (std::size_t i = file.size() - 32; i < file.size(); ++i) {
    std::string changed = file;
    changed[i] ^= 1;
    CHECK(reason(changed) == "its checksum is wrong");
  }
  std::string changed = file;
  changed.replace(changed.find("120"), 3, "121");
  CHECK(reason(changed) == "its checksum is wrong");
}

TEST_CASE("safetensors: a byte changed anywhere never reads as something else") {
  const std::string file = whole_file();
  for (std::size_t i = 0; i < file.size(); ++i) {
    for (const int flip : {1, 0x10, 0x80}) {
      std::string changed = file;
      changed[i] = static_cast<char>(changed[i] ^ flip);
      try {
        const Safetensors state = decode_safetensors(changed);
        // Without an error only a name or a shape was changed, which the reader compares with its
        // model.
        if (state.has_checksum) CHECK(state.metadata == decode_safetensors(file).metadata);
      } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::kProtocol);
      }
    }
  }
}

TEST_CASE("safetensors: a text that is no such file is told") {
  CHECK(contains(reason(std::string(100, '\xff')), "no safetensors file"));
  CHECK(contains(reason(file_with("[]")), "no JSON object"));
  CHECK(contains(reason(file_with("{")), "no JSON object"));
  CHECK(contains(reason(file_with(std::string(100'000, '['))), "no JSON object"));
  CHECK(contains(reason(file_with(R"({"__metadata__":{"a":1}})")), "metadata value"));
  CHECK(contains(reason(file_with(R"({"__metadata__":[]})")), "no object"));
}

TEST_CASE("safetensors: a header that lies about its tensors") {
  const auto with = [](const std::string& entry) {
    return reason(file_with(R"({"__metadata__":{"crc32":"0"},)" + entry + "}", "12345678"));
  };
  CHECK(contains(with(R"("a":1)"), "no tensor"));
  CHECK(contains(with(R"("a":{})"), "lacks data_offsets"));
  CHECK(contains(with(R"("a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]})"), "unknown dtype"));
  CHECK(contains(with(R"("a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"), "bad shape"));
  CHECK(contains(with(R"("a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]})"), "data_offsets"));
  CHECK(contains(with(R"("a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), "data_offsets"));
  CHECK(contains(with(R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0]})"), "data_offsets"));
  CHECK(contains(with(R"("a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]})"), "cut off"));
  CHECK(contains(with(R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]})"), "overlap"));
  CHECK(
      contains(with(R"("a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]})"),
               "beyond all memory"));
  CHECK(contains(with(R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                      R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]})"),
                 "overlap"));
}

TEST_CASE("safetensors: a file of another program has no checksum, and is read") {
  CHECK_FALSE(decode_safetensors(file_with("{}")).has_checksum);
  const std::string file = file_with(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[4,6]},)"
      R"("a":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]}})",
      "123456");
  const Safetensors read = decode_safetensors(file);
  CHECK_FALSE(read.has_checksum);
  CHECK(read.metadata == Metadata{{"format", "pt"}});
  REQUIRE(read.tensors.size() == 2);
  CHECK(read.tensors[0].name == "a");
  CHECK(read.tensors[0].bytes == "1234");
  CHECK(read.tensors[1].bytes == "56");
}
