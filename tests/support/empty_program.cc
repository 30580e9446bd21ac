// SPDX-License-Identifier: Apache-2.0
// Nothing: the precompiled header of the tests needs a program to belong to.
int main() {}
