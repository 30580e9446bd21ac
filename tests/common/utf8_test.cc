// SPDX-License-Identifier: Apache-2.0
#include "common/utf8.h"

#include "tests/support/catch.h"

using namespace ddprun;

TEST_CASE("utf8_length: characters of one to four bytes, whatever follows") {
  CHECK(utf8_length("a") == 1);
  CHECK(utf8_length("é and more") == 2);
  CHECK(utf8_length("\xE2\x82\xAC\xFF") == 3);
  CHECK(utf8_length("\xF0\x9F\x98\x80") == 4);
  CHECK(utf8_length(kReplacementCharacter) == kReplacementCharacter.size());
}

TEST_CASE("utf8_length: the first and the last character of each length") {
  CHECK(utf8_length(std::string_view("\0", 1)) == 1);
  CHECK(utf8_length("\x7F") == 1);
  CHECK(utf8_length("\xC2\x80") == 2);
  CHECK(utf8_length("\xDF\xBF") == 2);
  CHECK(utf8_length("\xE0\xA0\x80") == 3);
  CHECK(utf8_length("\xED\x9F\xBF") == 3);
  CHECK(utf8_length("\xEF\xBF\xBF") == 3);
  CHECK(utf8_length("\xF0\x90\x80\x80") == 4);
  CHECK(utf8_length("\xF4\x8F\xBF\xBF") == 4);
}

TEST_CASE("utf8_code: the first and the last character of each length") {
  CHECK(utf8_code("a and more") == U'a');
  CHECK(utf8_code("\xC2\x80") == 0x80);
  CHECK(utf8_code("\xDF\xBF") == 0x7FF);
  CHECK(utf8_code("\xE0\xA0\x80") == 0x800);
  CHECK(utf8_code("\xEF\xBF\xBF") == 0xFFFF);
  CHECK(utf8_code("\xF0\x90\x80\x80") == 0x10000);
  CHECK(utf8_code("\xF4\x8F\xBF\xBF") == 0x10FFFF);
}

TEST_CASE("utf8_length: bytes that are not UTF-8 have the length 0") {
  const char* const text = GENERATE("\x80",              // in the middle of a character
                                    "\xC3",              // cut off
                                    "\xE2\x82",          // cut off
                                    "\xC3(",             // not continued
                                    "\xF0\x9F\x98z",     // not continued
                                    "\xC1\xBF",          // overlong
                                    "\xE0\x9F\xBF",      // overlong
                                    "\xF0\x8F\xBF\xBF",  // overlong
                                    "\xED\xA0\x80",      // surrogate
                                    "\xF4\x90\x80\x80",  // beyond U+10FFFF
                                    "\xF5\x80\x80\x80", "\xFF");
  CHECK(utf8_length(text) == 0);
}
