// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/mirror_codec.h"

#include <random>
#include <string>
#include <vector>

#include "common/hex.h"
#include "rendezvous/ha/mirror_transfer.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"

namespace ddprun::ha::mirror {
namespace {

using journal::Batch;

constexpr char kId[] = "0123456789abcdef0123456789abcdef";
constexpr char kOther[] = "fedcba9876543210fedcba9876543210";

template <typename Call>
std::string refusal(Call&& call) {
  std::string what;
  CHECK(test::code_of(call, &what) == ErrorCode::kProtocol);
  CHECK(what.find('\n') == std::string::npos);
  return what;
}

std::string refused_caller(const std::string& text) {
  return refusal([&] { decode_caller_message(text); });
}
std::string refused_called(const std::string& text) {
  return refusal([&] { decode_called_message(text); });
}

std::string hex_of(std::string_view bytes) {
  return to_hex({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
}

// A transfer's parts as a standby would get them.
std::vector<std::string> parts_of(Transfer transfer, std::uint64_t number, const Batch& rows) {
  std::vector<std::string> parts;
  RowCutter cutter(transfer, number, [&](std::string part) { parts.push_back(std::move(part)); });
  for (const auto& row : rows) cutter.add(row);
  cutter.finish();
  return parts;
}

bool same(const Batch& a, const Batch& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.key == y.key && x.content == y.content;
  });
}

std::string part_of(Transfer transfer, bool is_last, std::uint64_t number, std::string_view rows) {
  Part part;
  part.transfer = transfer;
  part.is_last = is_last;
  part.number = number;
  part.rows = rows;
  return encode(part);
}

PairState synced_state() {
  PairState state;
  state.name = "b:29400";
  state.rows = RowsKind::kSynced;
  state.term = {kId, 4};
  state.line = {kId, kOther};
  state.num_jobs = 2;
  state.given_up = {kOther};
  return state;
}

Hello hello_of(const PairState& state) {
  Hello hello;
  hello.state = state;
  return hello;
}

TEST_CASE("Mirror frames: as the page has them, and back") {
  CHECK(encode(CallerMessage(Mirror{})) == R"({"type":"mirror"})");
  CHECK(encode(CallerMessage(Got{524288})) == R"({"type":"got","bytes":524288})");
  CHECK(encode(CallerMessage(Ack{7})) == R"({"type":"ack","number":7})");
  CHECK(encode(CallerMessage(Leaves{})) == R"({"type":"leaves"})");
  CHECK(encode(CalledMessage(Welcome{"5f0c"})) == R"({"type":"welcome","boot":"5f0c"})");
  CHECK(encode(CalledMessage(Refused{"no"})) == R"({"type":"refused","reason":"no"})");
  CHECK(encode(CalledMessage(Yours{})) == R"({"type":"yours"})");
  InSync said;
  said.term = synced_state().term;
  said.line = synced_state().line;
  const std::string in_sync = encode(CalledMessage(said));
  CHECK(in_sync == R"({"type":"in_sync","term":{"id":")" + std::string(kId) +
                       R"(","number":4},"line":[")" + kId + R"(",")" + kOther + R"("]})");

  CHECK(std::holds_alternative<Mirror>(decode_caller_message(R"({"type":"mirror","new":1})")));
  CHECK(std::get<Got>(decode_caller_message(R"({"type":"got","bytes":5})")).bytes == 5);
  CHECK(std::get<Ack>(decode_caller_message(R"({"type":"ack","number":5})")).number == 5);
  CHECK(std::holds_alternative<Leaves>(decode_caller_message(R"({"type":"leaves"})")));
  const auto synced = std::get<InSync>(decode_called_message(in_sync));
  CHECK((synced.term == said.term && synced.line == said.line));
  CHECK(std::get<Welcome>(decode_called_message(R"({"type":"welcome","boot":"x"})")).boot == "x");
  CHECK(std::get<Refused>(decode_called_message(R"({"type":"refused","reason":"r"})")).reason ==
        "r");
  CHECK(std::holds_alternative<Yours>(decode_called_message(R"({"type":"yours"})")));
}

TEST_CASE("Mirror frames: hello has what each side knows of itself, both ways") {
  const std::string id(kId), other(kOther);
  const std::string text = R"({"type":"hello","version":1,"name":"b:29400","first":false,)"
                           R"("leads":false,"rows":"synced","term":{"id":")" +
                           id + R"(","number":4},"line":[")" + id + R"(",")" + other +
                           R"("],"jobs":2,"held":0,"given_up":[")" + other + R"("]})";
  CHECK(encode(CallerMessage(hello_of(synced_state()))) == text);
  CHECK(encode(CalledMessage(hello_of(synced_state()))) == text);
  CHECK(std::get<Hello>(decode_caller_message(text)).state == synced_state());
  CHECK(std::get<Hello>(decode_called_message(text)).state == synced_state());
  for (const RowsKind kind : {RowsKind::kEmpty, RowsKind::kCopy, RowsKind::kLeads}) {
    PairState state = synced_state();
    state.rows = kind;
    state.is_first = true;
    state.num_held = 3;
    state.leads = kind == RowsKind::kLeads;
    if (!state.leads) state.term = {}, state.line = {};
    const std::string said = encode(CalledMessage(hello_of(state)));
    CHECK(std::get<Hello>(decode_called_message(said)).state == state);
  }
}

TEST_CASE("Mirror frames: of a hello of another version only who says it is known") {
  const auto hello = std::get<Hello>(
      decode_caller_message(R"({"type":"hello","version":2,"name":"b:1","rows":{}})"));
  CHECK(hello.version == 2);
  CHECK(hello.state.name == "b:1");
}

TEST_CASE("Mirror frames: a hello whose parts do not fit each other is a protocol error") {
  const auto refusal_with = [](const std::string& from, const std::string& to) {
    std::string text = encode(CallerMessage(hello_of(synced_state())));
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    return refused_caller(text.replace(at, from.size(), to));
  };
  CHECK(refusal_with(R"("leads":false)", R"("leads":true)") == "who leads has rows of its own");
  CHECK(refusal_with(R"("rows":"synced")", R"("rows":"x")") == R"(message "hello": "rows" is "x")");
  CHECK(refusal_with("\"line\":[\"" + std::string(kId) + "\",", "\"line\":[") ==
        R"("line" does not begin with its term)");
  CHECK(refusal_with("\"given_up\":[\"" + std::string(kOther), "\"given_up\":[\"x") ==
        R"("given_up" has an id that is no term's)");
  CHECK_THAT(refusal_with(R"("term":)", R"("therm":)"), test::Contains(R"("term" is missing)"));
  std::string many = R"("given_up":[)";
  for (int i = 0; i < 17; ++i) many += "\"" + std::string(kOther) + "\",";
  CHECK_THAT(refusal_with(R"("given_up":[)", many), test::Contains("more than 16"));
}

TEST_CASE("Mirror frames: what makes no sense is a protocol error that names the field") {
  CHECK(refused_caller("{") == R"("{" is no message of a mirror)");
  CHECK(refused_caller("[]") == R"("[]" is no message of a mirror)");
  CHECK(refused_caller("{}") == R"(a mirror's message: "type" is missing)");
  CHECK(refused_caller(R"({"type":"in_sync"})") == R"(a caller sends no message "in_sync")");
  CHECK(refused_caller(R"({"type":"hello","name":"x"})") ==
        R"(message "hello": "version" is missing)");
  CHECK(refused_caller(R"({"type":"ack","number":-1})") ==
        R"(message "ack": "number" is -1, not in 0 to 9223372036854775807)");
  CHECK(refused_caller(R"({"type":"got","bytes":"1"})") ==
        R"(message "got": "bytes" is not an integer in range)");
  CHECK(refused_caller(R"({"type":"ack","number":1,"x":")" + std::string(5000, 'x') + "\"}")
            .ends_with("larger than allowed"));
  CHECK(refused_called(R"({"type":"mirror"})") == R"(who was called sends no message "mirror")");
  CHECK(refused_called(R"({"type":"in_sync","term":{"id":"x","number":1},"line":["x"]})") ==
        R"("line" has an id that is no term's)");
}

TEST_CASE("Mirror frames: names and reasons are cut, and the largest hello is within bounds") {
  PairState state = synced_state();
  state.name = std::string(1000, '\1') + "\xff";
  state.line.assign(kMaxTermLine, kId);
  state.given_up.assign(kMaxTermLine, kOther);
  const std::string text = encode(CallerMessage(hello_of(state)));
  CHECK(text.size() < kMaxMirrorTextBytes);
  CHECK(std::get<Hello>(decode_caller_message(text)).state.name.size() < 300);
  CHECK(encode(CalledMessage(Refused{std::string(100'000, '"')})).size() < kMaxMirrorTextBytes);
}

TEST_CASE("Mirror parts: the page's example, byte for byte") {
  const Batch batch{{"jobs/1/state", "{}"}, {"jobs/1/blame", std::nullopt}};
  const auto parts = parts_of(Transfer::kBatch, 7, batch);
  REQUIRE(parts.size() == 1);
  CHECK(hex_of(parts[0].substr(0, 10)) == "62010000000000000007");
  CHECK(hex_of(parts[0].substr(18)) == "0000000c00000002" + hex_of("jobs/1/state{}") +
                                           "0000000cffffffff" + hex_of("jobs/1/blame"));
  const Part part = decode_part(parts[0]);
  CHECK((part.transfer == Transfer::kBatch && part.is_last && part.number == 7));
  CHECK(part.monotonic_ns > 0);
  CHECK(same(rows_of(part.rows), batch));
  std::string rows;
  for (const auto& row : batch) add_row(row, rows);
  CHECK(rows == part.rows);
}

TEST_CASE("Mirror parts: rows larger than parts, of no content, and cut anywhere") {
  std::mt19937 random(5);
  Batch rows{
      {"empty", ""}, {"big", std::string(3 * kMaxPartBytes + 5, 'b')}, {"gone", std::nullopt}};
  for (int i = 0; i < 200; ++i) {
    rows.push_back({"row/" + std::to_string(i), std::string(random() % 5000, '\0')});
  }
  const auto parts = parts_of(Transfer::kSnapshot, 1, rows);
  REQUIRE(parts.size() > 3);
  TransferReader reader;
  Batch read;
  std::string all;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    CHECK(parts[i].size() <= kPartHeaderBytes + kMaxPartBytes);
    const auto step = reader.take(parts[i]);
    CHECK(step.begins == (i == 0));
    CHECK(step.ends == (i + 1 == parts.size()));
    for (const auto& row : step.rows) read.push_back(row);
    all += decode_part(parts[i]).rows;
  }
  CHECK(same(read, rows));

  RowReader pieces;
  Batch of_pieces;
  for (std::string_view rest = all; !rest.empty();) {
    const std::string_view piece = rest.substr(0, 1 + random() % 4000);
    rest.remove_prefix(piece.size());
    for (auto& row : pieces.take(piece)) of_pieces.push_back(std::move(row));
  }
  CHECK(pieces.is_between_rows());
  CHECK(same(of_pieces, rows));
}

TEST_CASE("Mirror parts: a batch without rows is one part") {
  const auto parts = parts_of(Transfer::kBatch, 2, {});
  REQUIRE(parts.size() == 1);
  CHECK(parts[0].size() == kPartHeaderBytes);
}

TEST_CASE("Mirror parts: what can't come now ends the connection") {
  TransferReader reader;
  CHECK(refusal([&] { reader.take(part_of(Transfer::kBatch, true, 1, "")); }) ==
        "transfer 1 is the snapshot, and no other one");
  CHECK(refusal([&] { reader.take(part_of(Transfer::kSnapshot, true, 2, "")); }) ==
        "a part is of transfer 2 in place of 1");
  reader.take(part_of(Transfer::kSnapshot, false, 1, ""));
  CHECK(refusal([&] { reader.take(part_of(Transfer::kBatch, true, 2, "")); }) ==
        "a part is of transfer 2 in place of 1");
  reader.take(part_of(Transfer::kSnapshot, true, 1, ""));
  CHECK(refusal([&] { reader.take(part_of(Transfer::kSnapshot, true, 2, "")); }) ==
        "transfer 1 is the snapshot, and no other one");
  CHECK(refusal([&] { reader.take(part_of(Transfer::kBatch, true, 3, "")); }) ==
        "a part is of transfer 3 in place of 2");
  std::string own;
  add_row({"leader/term", "mine"}, own);
  CHECK(refusal([&] { reader.take(part_of(Transfer::kBatch, true, 2, own)); }) ==
        R"(row "leader/term" is each side's own)");
}

TEST_CASE("Mirror parts: torn and oversized ones are refused") {
  CHECK(refusal([] { decode_part("b\1"); }) == "a part has 2 bytes alone");
  std::string part = part_of(Transfer::kBatch, true, 1, "");
  part[0] = 'x';
  CHECK(refusal([&] { decode_part(part); }) == "a part is neither a snapshot's nor a batch's");
  part[0] = 'b', part[1] = 2;
  CHECK(refusal([&] { decode_part(part); }) == "a part is neither the last one nor another");
  part[1] = 1, part[2] = '\x80';
  CHECK(refusal([&] { decode_part(part); }) == "a part's number is out of range");
  part[2] = 0, part[10] = '\xff';
  CHECK(refusal([&] { decode_part(part); }) == "a part's clock is out of range");
  CHECK(refusal([] {
          decode_part(std::string(kPartHeaderBytes + kMaxPartBytes + 1, 'b'));
        }).ends_with("larger than allowed"));
  CHECK(refusal([] { rows_of(std::string("\0\0\0\0\0\0\0\0", 8)); }) == "a row's name has 0 bytes");
  CHECK(refusal([] { rows_of(std::string("\0\0\x10\x01\0\0\0\0", 8)); }) ==
        "a row's name has 4097 bytes");
  CHECK(refusal([] { rows_of(std::string("\0\0\0\1\xfe\0\0\0", 8)); }) ==
        "a row has 4261412864 bytes");
  CHECK(refusal([] { rows_of(std::string("\0\0\0\1\0\0\0\2kx", 10)); }) ==
        "the last row is cut off");
  TransferReader reader;
  CHECK(refusal([&] {
          reader.take(part_of(Transfer::kSnapshot, true, 1, std::string("\0\0\0\1", 4)));
        }) == "a transfer ends inside of a row");
}

}  // namespace
}  // namespace ddprun::ha::mirror
