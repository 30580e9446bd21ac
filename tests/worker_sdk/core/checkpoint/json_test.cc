// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/checkpoint/json.h"

#include <string>
#include <vector>

#include "tests/support/catch.h"

using namespace ddprun;
using Kind = JsonValue::Kind;

TEST_CASE("json: objects, arrays, texts and numbers in their order") {
  const auto value = parse_json(" {\"b\":[1, 18446744073709551615,[]] ,\"a\":{},\"t\":\"x\" }\n ");
  REQUIRE(value);
  REQUIRE(value->kind == Kind::kObject);
  CHECK(value->names == std::vector<std::string>{"b", "a", "t"});
  REQUIRE(value->items.size() == 3);
  const auto& items = value->items[0].items;
  REQUIRE(items.size() == 3);
  CHECK(items[0].number == 1);
  CHECK(items[1].number == 18446744073709551615u);
  CHECK(items[2].kind == Kind::kArray);
  CHECK(value->items[1].kind == Kind::kObject);
  CHECK(value->items[2].text == "x");
}

TEST_CASE("json: a value that is no natural number is something else, and not an error") {
  for (const char* text :
       {"true", "false", "null", "-1", "1.5", "1e3", "-0", "18446744073709551616"}) {
    INFO(text);
    const auto value = parse_json(text);
    REQUIRE(value);
    CHECK(value->kind == Kind::kOther);
  }
}

TEST_CASE("json: escapes") {
  const auto text = [](const std::string& json) { return parse_json(json)->text; };
  CHECK(text(R"("\"\\\/\b\f\n\r\t")") == "\"\\/\b\f\n\r\t");
  CHECK(text(R"("\u0041\u00e9\u20AC\ud83d\ude00")") == "A\u00e9\u20ac\U0001f600");
  CHECK(text(R"("\u0000")") == std::string(1, '\0'));
  CHECK(text("\"\u00e9\"") == "\u00e9");
  for (const std::string& any :
       {std::string("plain"), std::string("\"\\\n\x01\0x", 6), std::string("\u20ac")}) {
    CHECK(text(quote_json(any)) == any);
  }
}

TEST_CASE("json: an invalid text is refused") {
  const std::string deep(17, '['), deep_end(17, ']');
  CHECK(parse_json(deep.substr(1) + deep_end.substr(1)));
  for (const std::string& text : {std::string(),
                                  std::string("{"),
                                  std::string("[1,]"),
                                  std::string("{\"a\":1,}"),
                                  std::string("{a:1}"),
                                  std::string("{\"a\" 1}"),
                                  std::string("[1 2]"),
                                  std::string("1 2"),
                                  std::string("\"open"),
                                  std::string("\"\\"),
                                  std::string("\"\\x\""),
                                  std::string("\"\\u12\""),
                                  std::string("\"\\u12g4\""),
                                  std::string("\"\\ud83d\""),
                                  std::string("\"\\ude00\""),
                                  std::string("\"\\ud83d\\u0041\""),
                                  std::string("\"a\nb\""),
                                  std::string("\"\xff\""),
                                  std::string("01"),
                                  std::string("+1"),
                                  std::string("nan"),
                                  std::string("inf"),
                                  std::string("nul"),
                                  std::string("]"),
                                  std::string("{\"a\":1,\"a\":2}"),
                                  "[" + deep + deep_end + "]",
                                  std::string(1'000'000, '[')}) {
    INFO(text.substr(0, 40));
    CHECK_FALSE(parse_json(text));
  }
}
