// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/pages/gang_client.h"

#include <string>

#include "common/byte_text.h"
#include "common/error.h"
#include "tests/support/catch.h"

namespace ddprun::pages {
namespace {

// A reader of a gang on n1, and the pages of n1's stdout, one after the other.
struct Reading {
  GangReader reader;

  gangs::GangNews page(const std::string& out, const std::string& reason = "") const {
    gangs::GangNews news = begin();
    gangs::NodeOutput output;
    output.at.node = "n1";
    output.out = to_base64(out);
    output.out_next = reader.places().front().out + out.size();
    output.reason = reason;
    news.output = {output};
    return news;
  }
  // News that tell of the node.
  gangs::GangNews begin() const {
    gangs::GangNews news;
    news.state.phase = has_ended ? gangs::GangPhase::kEnded : gangs::GangPhase::kRunning;
    news.state.parts.emplace_back().node = "n1";
    return news;
  }
  std::string take(const gangs::GangNews& news) { return text_of(reader.take(news)); }
  static std::string text_of(const std::vector<GangReader::Piece>& pieces) {
    std::string text;
    for (const auto& piece : pieces) text += piece.text;
    return text;
  }

  bool has_ended = false;
};

TEST_CASE("GangReader: bytes that end no line mean that there may be more") {
  Reading reading;
  CHECK(reading.take(reading.begin()).empty());
  CHECK(reading.reader.has_more());  // more of a node of which it has just heard
  const std::string bar(1000, '\r');
  CHECK(reading.take(reading.page(bar)).empty());
  CHECK(reading.reader.has_more());
  CHECK(reading.take(reading.page("10%\nx")) == bar + "10%\n");
  CHECK(reading.reader.has_more());
  CHECK(reading.take(reading.page("")).empty());
  CHECK_FALSE(reading.reader.has_more());
  CHECK(Reading::text_of(reading.reader.take_rest()) == "x");
  CHECK(reading.reader.take_rest().empty());
}

TEST_CASE("GangReader: a page that a change made before its nodes answered is no end") {
  Reading reading;
  reading.take(reading.begin());
  reading.has_ended = true;
  reading.take(reading.page("a\n"));
  auto hasty = reading.page("");
  hasty.changes = 1;
  reading.take(hasty);
  CHECK_FALSE(reading.reader.is_over());
  auto rest = reading.page("b\n");
  rest.changes = 1;
  CHECK(reading.take(rest) == "b\n");
  auto end = reading.page("");
  end.changes = 1;
  reading.take(end);
  CHECK(reading.reader.is_over());
}

TEST_CASE("GangReader: a last line without an end comes at the gang's end, too") {
  Reading reading;
  reading.has_ended = true;
  reading.take(reading.begin());
  CHECK(reading.take(reading.page("no end")).empty());
  CHECK_FALSE(reading.reader.is_over());
  CHECK(reading.take(reading.page("")) == "no end");
  CHECK(reading.reader.is_over());
}

TEST_CASE("GangReader: a node that was away for one page is no trouble at the end") {
  Reading reading;
  reading.take(reading.begin());
  reading.take(reading.page("", "node n1 is not connected"));
  CHECK(reading.reader.troubles() == std::vector<std::string>{"node n1 is not connected"});
  reading.take(reading.page("back\n"));
  CHECK(reading.reader.troubles().empty());
}

TEST_CASE("GangReader: nothing of a page that makes no sense is taken") {
  Reading reading;
  reading.take(reading.begin());
  const gangs::GangNews right = reading.page("a\n");
  gangs::GangNews wrong = right;
  SECTION("a node that nobody asked for") {
    wrong.output.push_back(wrong.output.front());
    wrong.output.back().at.node = "n2";
  }
  SECTION("no base64") { wrong.output.front().err = "?"; }
  SECTION("an offset that goes back, so that it would be read for ever") {
    wrong.output.front().out_next = 0;
  }
  CHECK_THROWS_AS(reading.reader.take(wrong), Error);
  CHECK(reading.reader.places().front().out == 0);
  CHECK(reading.take(right) == "a\n");
}

}  // namespace
}  // namespace ddprun::pages
