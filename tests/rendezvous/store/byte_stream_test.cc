// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/byte_stream.h"

#include <deque>
#include <random>

#include "common/text.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace ddprun;
using namespace ddprun::store;

namespace {

std::string random_bytes(std::mt19937& random, std::size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

}  // namespace

TEST_CASE("OutgoingBytes: each byte arrives once and in order, whatever connections end") {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    OutgoingBytes out;
    IncomingBytes in;
    std::string written, arrived;
    struct Flight {
      std::uint64_t position;
      std::string bytes;
    };
    std::deque<Flight> under_way;
    const auto arrive = [&] {
      const auto fresh = in.receive(under_way.front().position, under_way.front().bytes);
      REQUIRE(fresh);
      arrived += *fresh;
      under_way.pop_front();
    };
    for (int i = 0; i < 300; ++i) {
      switch (random() % 6) {
        case 0:
        case 1: {
          const std::string more = random_bytes(random, random() % 5000);
          written += more;
          if (random() % 2) {
            out.write(more);
          } else {
            out.write(std::make_shared<const std::string>(more));
          }
          break;
        }
        case 2:
        case 3: {
          const std::uint64_t position = out.position();
          const std::string bytes = out.take(random() % 4000);
          under_way.push_back({position, bytes});
          break;
        }
        case 4:
          if (!under_way.empty()) arrive();
          if (random() % 2) REQUIRE(out.acknowledge(in.received()));
          break;
        default:
          if (random() % 4) break;
          under_way.clear();  // the connection ends, and loses everything that is on its way
          if (random() % 2) REQUIRE(out.acknowledge(in.received()));
          out.rewind();
      }
      REQUIRE(out.unacknowledged_bytes() <= written.size());
    }
    for (;;) {
      while (!under_way.empty()) arrive();
      REQUIRE(out.acknowledge(in.received()));
      const std::uint64_t position = out.position();
      const std::string bytes = out.take(100'000);
      if (bytes.empty()) break;
      under_way.push_back({position, bytes});
    }
    CHECK(arrived == written);
    CHECK(out.unacknowledged_bytes() == 0);
  }
}

TEST_CASE("OutgoingBytes: no more than a window is under way") {
  OutgoingBytes out;
  const std::string large(3 * OutgoingBytes::kWindowBytes, 'x');
  out.write(std::make_shared<const std::string>(large));
  CHECK(out.take(large.size()).size() == OutgoingBytes::kWindowBytes);
  CHECK(out.take(large.size()).empty());
  REQUIRE(out.acknowledge(1000));
  CHECK(out.take(large.size()).size() == 1000);
  CHECK_FALSE(out.acknowledge(large.size() + 1));
}

TEST_CASE("IncomingBytes: a gap is noticed, bytes that are known already are left out") {
  IncomingBytes in;
  CHECK(in.receive(0, "abc") == "abc");
  CHECK(in.receive(0, "abc") == "");
  CHECK(in.receive(1, "bcd") == "d");
  CHECK_FALSE(in.receive(5, "f"));
  CHECK(in.received() == 4);
}

TEST_CASE("ItemReader: items are cut out of any segmentation") {
  std::string stream;
  append_item_head({7, ItemKind::kData, 5}, &stream);
  stream += "hello";
  append_item_head({9, ItemKind::kClose, 0}, &stream);
  append_item_head({7, ItemKind::kData, 2}, &stream);
  stream += "yo";
  for (std::size_t size = 1; size <= stream.size(); ++size) {
    ItemReader reader;
    std::string seen;
    const auto part = [&](const ItemHead& head, std::string_view content, bool is_last) {
      seen += content;
      if (is_last) seen += concat("<", head.connection, head.kind == ItemKind::kClose ? "x>" : ">");
    };
    for (std::size_t at = 0; at < stream.size(); at += size) {
      reader.read(std::string_view(stream).substr(at, size), part);
    }
    CHECK(seen == "hello<7><9x>yo<7>");
  }
  ItemReader reader;
  std::string unknown;
  append_item_head({7, static_cast<ItemKind>(9), 5}, &unknown);
  CHECK(test::code_of([&] { reader.read(unknown, [](auto&&...) {}); }) == ErrorCode::kProtocol);
}

TEST_CASE("ProxyFrame: a frame comes back as it was, an invalid one is refused") {
  const std::string message = encode_frame({3, 70'000'000'000, 12, "bytes"});
  const ProxyFrame frame = decode_frame(message);
  CHECK(frame.round == 3);
  CHECK(frame.position == 70'000'000'000);
  CHECK(frame.received == 12);
  CHECK(frame.bytes == "bytes");
  CHECK(test::code_of([&] { decode_frame(message.substr(0, 20)); }) == ErrorCode::kProtocol);
  CHECK(test::code_of([&] { decode_frame("{\"type\":\"join\"} and so on and on"); }) ==
        ErrorCode::kProtocol);
  CHECK(test::code_of([&] {
          decode_frame(encode_frame({1, 0, 0, std::string(kMaxFrameBytes + 1, 'x')}));
        }) == ErrorCode::kProtocol);
}
