function e(n,r=""){if(n==null)return"null";if(Array.isArray(n))return n.length===0?"[]":n.map(t=>`${r}- ${g(t,`${r}  `).trimStart()}`).join(`
`);if(typeof n=="object"){let t=Object.entries(n).filter(([,i])=>i!==void 0);return t.length===0?"{}":t.map(([i,s])=>{let f=g(s,`${r}  `);return c(s)?`${r}${o(i)}:
${f}`:`${r}${o(i)}: ${f.trimStart()}`}).join(`
`)}return typeof n=="string"?o(n):String(n)}function c(n){return typeof n=="object"&&n!==null&&(Array.isArray(n)?n.length>0:Object.keys(n).length>0)}function g(n,r){return c(n)?e(n,r):e(n)}function o(n){return/^[A-Za-z_/][A-Za-z0-9_./ -]*$/.test(n)&&!/^(true|false|null|yes|no|on|off)$/i.test(n)&&!n.endsWith(" ")?n:JSON.stringify(n)}export{e as a};
