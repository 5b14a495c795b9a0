// The npm client of Ollama against the gateway that OLLAMA_HOST names.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Ollama } from 'ollama';

const client = new Ollama({ host: process.env.OLLAMA_HOST });
const model = 'sim';
const messages = [
  { role: 'system', content: 'You help.' },
  { role: 'user', content: 'Hello?' },
];
const options = { num_predict: 12 };

test('list', async () => {
  const { models } = await client.list();
  assert.deepEqual(models.map((m) => m.name), ['sim', 'embedder']);
  assert.ok(!Number.isNaN(Date.parse(models[0].modified_at)));
});

test('ps', async () => {
  const { models } = await client.ps();
  assert.equal(models.length, 2);
});

test('version', async () => {
  const { version } = await client.version();
  assert.match(version, /^\d+\.\d+\.\d+/);
});

test('chat', async () => {
  const c = await client.chat({ model, messages, options });
  assert.ok(c.message.content);
  assert.equal(c.done_reason, 'length');
  assert.equal(c.eval_count, 12);
});

test('streaming', async () => {
  let text = '';
  let last;
  for await (const part of await client.chat({ model, messages, options, stream: true })) {
    text += part.message.content;
    last = part;
  }
  assert.ok(last.done);
  assert.equal(last.eval_count, 12);
  const c = await client.chat({ model, messages, options });
  assert.equal(text, c.message.content);
});

test('a stream that is left', async () => {
  const stream = await client.chat({ model, messages, stream: true });
  for await (const part of stream) {
    assert.equal(part.done, false);
    stream.abort();
    break;
  }
});

test('generate', async () => {
  const one = await client.generate({ model, prompt: 'Hello?', system: 'You help.' });
  assert.ok(one.response);
  const two = await client.generate({ model, prompt: 'And then?', context: one.context });
  assert.ok(two.prompt_eval_count > one.prompt_eval_count);
});

test('embed', async () => {
  const { embeddings } = await client.embed({ model: 'embedder', input: ['a', 'b'] });
  assert.equal(embeddings.length, 2);
});

test('show', async () => {
  const shown = await client.show({ model });
  assert.ok(shown.model_info);
});

test('errors', async () => {
  await assert.rejects(client.chat({ model: 'nobody', messages }), { status_code: 404, error: 'the model "nobody" does not exist' });
  await assert.rejects(client.chat({ model, messages: [{ content: 'who?' }] }), { status_code: 400 });
});
